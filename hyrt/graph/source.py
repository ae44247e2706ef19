"""Opening and checking of graphs from files, folders, generators, OGB names and objects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_array, check_choice, check_int, check_type
from hyrt.errors import ArgumentError, DataError, DataWarning, escape_undecodable, warn_user
from hyrt.formatting import format_bytes
from hyrt.graph.bundled import resolve_source
from hyrt.graph.formats.dataset_files import read_folder, read_npz
from hyrt.graph.formats.dgl import is_dgl_file, read_dgl_file
from hyrt.graph.formats.schema import (
    VERTEX_IDS,
    Dataset,
    FeatureRows,
    check_dataset,
    from_graph,
    is_large,
    make_row_source,
    mask_suffixes,
    to_graph,
    with_labels,
)
from hyrt.graph.graph import SPLITS, Graph, VertexTable
from hyrt.graph.hetero.graph_types import types_from_arrays
from hyrt.graph.labels import is_labelled
from hyrt.graph.normalize import Normalize, are_bags_of_words, normalize_features
from hyrt.graph.partition.manifest import is_partition
from hyrt.graph.row_source import DenseFeatures, HeteroRows, RowSource, SparseFeatures
from hyrt.graph.tables.columns import SuspiciousColumns, format_reasons
from hyrt.graph.topology import Topology
from hyrt.runtime.files import is_path_too_long
from hyrt.runtime.workers import current_workers

_REMEDY = "create graphs with hyrt.load, or from numpy arrays with hyrt.Graph.from_arrays"


def check_graph(graph: Graph) -> Graph:
    """Return a graph after checking that its arrays are consistent; dense features are not read.

    Raises DataError or ArgumentError with the first invalid position.
    """
    if "was_checked" in graph.__dict__:
        return graph
    topology = check_type("the graph's topology", graph.topology, Topology, _REMEDY).checked
    table = check_type("the graph's vertex table", graph.vertices, VertexTable, _REMEDY)
    check_type("the graph's name", graph.name, str, _REMEDY)
    check_type("the graph's label array", table.labels, np.ndarray, _REMEDY)
    num = topology.num_vertices
    for name, mask in check_type("the graph's mask dictionary", table.masks, dict, _REMEDY).items():
        check_type(f"the graph's mask {name!r}", mask, np.ndarray, _REMEDY)
    if isinstance(table.features, DenseFeatures):
        check_array("features", table.features.values, "f", (num, None), "one row per vertex")
    elif isinstance(table.features, SparseFeatures):
        check_int("the width of the sparse features", table.features.width, 1, 2**31 - 1)
        for name in ("indptr", "columns", "values"):
            check_type(
                f"array {name!r} of the sparse features", getattr(table.features, name), np.ndarray, _REMEDY
            )
    elif not hasattr(table.features, "rows") or not hasattr(table.features, "width"):
        raise ArgumentError(
            f"the graph's feature object is of type {type(table.features).__name__}: {_REMEDY}"
        )
    data = from_graph(graph)
    # Graphs in memory may lack masks.
    masks = {
        key: np.zeros(num, np.bool_)
        for suffix in mask_suffixes(data.arrays)
        for split in SPLITS
        if (key := f"{split}_mask{suffix}") not in data.arrays
    }
    shape = graph.masks["train"].shape if "train" in graph.masks else (num,)
    masks = {key: np.zeros(shape, np.bool_) for key in masks}
    check_dataset(replace(data, arrays=data.arrays | masks), features="none", ordered=False)
    graph.__dict__["was_checked"] = True
    return graph


Array = NDArray[Any]

_BLOCKS, _BLOCK_ROWS = 16, 64
"""Number and size of the blocks in which rows are sampled, because large features may be on disk."""
_MAX_LABELLED = 512
_MAX_VALUES = 1 << 22
"""Maximum number of values in a sample. Bags of words with more columns are not sampled."""


def warn_suspicious_features(data: Dataset) -> None:
    """Warn about columns of an unscaled dataset that are probably not features.

    Table imports check all rows. This function samples features from other sources.
    """
    labels, ids = data.arrays["labels"], data.arrays.get(VERTEX_IDS)
    types = types_from_arrays(data.arrays)
    if types is None:
        tables = {"": (data, 0, len(labels))}
    else:
        tables = {name: (table, *types.interval(name)) for name, table in (data.tables or {}).items()}
    for vertex_type, (table, start, stop) in tables.items():
        if vertex_type in data.names.columns:
            continue
        features = make_row_source(table)
        numbers = np.arange(stop - start) if ids is None else ids[start:stop] - start
        reasons = _suspicious_columns(features, labels[start:stop], numbers)
        if reasons:
            warn_user(
                f"{table.name}: feature columns {format_reasons(reasons)} look like row numbers or copies of "
                "the label: remove them if they are unknown for new vertices",
                DataWarning,
            )


def _suspicious_columns(features: RowSource, labels: Array, numbers: Array) -> dict[int, str]:
    """Return the reason why a column is suspicious, by index of the column.

    `labels` has n rows. `numbers` [n] are the row numbers before vertices were reordered.
    """
    count = len(numbers)
    if (_BLOCKS * _BLOCK_ROWS + _MAX_LABELLED) * features.width > _MAX_VALUES or not count:
        return {}
    found = SuspiciousColumns(features.width)
    starts = np.linspace(0, max(count - _BLOCK_ROWS, 0), _BLOCKS).astype(np.int64)
    rows = np.unique(np.minimum(starts[:, None] + np.arange(_BLOCK_ROWS), count - 1))
    found.add(_rows(features, rows), None, numbers[rows])
    labelled = np.flatnonzero(is_labelled(labels)) if labels.ndim == 1 else np.empty(0, np.int64)
    if len(labelled):
        places = np.linspace(0, len(labelled) - 1, min(_MAX_LABELLED, len(labelled))).astype(np.int64)
        rows = labelled[places]
        found.add_labelled(_rows(features, rows), labels[rows])
    return found.find_reasons()


def _rows(features: RowSource, rows: Array) -> Array:
    """Return rows [n, width] as a dense array without compiling a kernel."""
    if isinstance(features, DenseFeatures):
        return np.asarray(features.values[rows])
    if isinstance(features, SparseFeatures):
        values = np.zeros((len(rows), features.width), np.float32)
        for place, row in enumerate(rows.tolist()):
            entries = slice(features.indptr[row], features.indptr[row + 1])
            values[place, features.columns[entries]] = features.values[entries]
        return values
    values = np.empty((len(rows), features.width), np.float32)
    features.rows(rows, values, current_workers())
    return values


SYNTHETIC = "synthetic:"
KINDS = (
    "a .npz file, a folder of .npy files or of parts, 'synthetic:PRESET[,key=value,...]', 'ogbn-NAME', "
    "'mag240m', 'mag240m:typed', a folder downloaded by ogb, a file written by dgl.save_graphs, or 'cora', "
    "which is included in hyrt"
)


def open_graph(
    source: str | Path | Graph | Any, *, normalize: Normalize = "none", check: bool = False
) -> Graph:
    """Open a graph and check it.

    Topology, labels, masks and sparse features are always checked. Dense features are checked for finite
    values unless they are memory-mapped and larger than 1 GiB. In a folder that hyrt has written, everything
    that is read is also verified against the checksums in meta.json.

    Parameters
    ----------
    source
        `.npz` file, or folder of `.npy` files (memory-mapped), in the dataset schema; folder of `hyrt
        partition`, which opens as one graph; `cora`, which is part of hyrt; `synthetic:PRESET` with
        `,key=value` parameters; `ogbn-*` or `mag240m`, which the ogb package downloads, or a folder that it
        has downloaded; PyG `Data`; DGL graph; or Graph, which is returned unchanged unless it must be scaled.
    normalize
        Scaling of features: `row` divides each row by its sum, and `length` by its Euclidean length.
        `standard` scales columns to mean 0 and standard deviation 1. `auto` is `length` for bags of words,
        otherwise `none`.
    check
        Whether to read and check large memory-mapped features too.

    Returns
    -------
    Graph, with int32 indices if V < 2^31.

    Raises
    ------
    ArgumentError
        If `normalize` is unknown.
    DataError
        If the source is invalid; the message gives the key and the first invalid position, or the remedy.
    """
    check_choice("normalize", normalize, get_args(Normalize))
    if isinstance(source, Graph):
        is_new = "was_checked" not in source.__dict__
        check_graph(source)
        if is_new:
            warn_suspicious_features(from_graph(source))
    if isinstance(source, Graph) and (normalize == "none" or (normalize == "auto" and not _has_bags(source))):
        return source
    data, trusted = _read(source, check, None)
    data = data.with_features(lambda table: _in_memory(table, data.name, normalize))
    if not trusted:
        check_dataset(data, features="all" if check else "small")
    if not isinstance(source, Graph) and not str(source).startswith(SYNTHETIC):
        warn_suspicious_features(data)
    return to_graph(normalize_features(data, normalize))


def _in_memory(table: Dataset, name: str, normalize: str) -> Dataset:
    """Load features into memory unless they are in files; refuse large features that must be scaled."""
    rows = table.rows
    if rows is not None and is_large(table) and normalize not in ("none", "auto", table.normalization):
        once = f"hyrt data convert {name} DEST" if rows.mapped else "hyrt partition ..."
        raise DataError(
            f"{table.name}: features of {format_bytes(rows.num_bytes)} are too large to scale in memory: "
            f"scale them once with {once} --normalize {normalize}"
        )
    if rows is not None and not rows.is_file_backed:
        return replace(table, rows=FeatureRows.from_array(rows.whole()))
    return table


def open_dataset(
    source: str | Path | Graph | Any, scratch: Path, *, sort: bool = False, unique: bool = False
) -> Dataset:
    """Open any source of `open_graph` for reading it once, block by block. Edges and features are sorted in
    `scratch`.

    Dense features are neither loaded nor checked for finite values. Folders that hyrt wrote are verified
    completely. `sort` and `unique` repair rows; see `hyrt.graph.formats.reorder.order_rows`.
    """
    data, trusted = _read(source, True, scratch)
    if not trusted:
        if sort or unique:
            from hyrt.graph.formats.reorder import order_rows

            check_dataset(data, features="none", ordered=False)
            data = order_rows(data, scratch, sort=sort, unique=unique)
        check_dataset(data, features="none")
    return data


def _has_bags(graph: Graph) -> bool:
    features = graph.features
    tables = features.tables if isinstance(features, HeteroRows) else (features,)
    return any(isinstance(table, SparseFeatures) and are_bags_of_words(table.values) for table in tables)


def _read(source: str | Path | Graph | Any, check: bool, scratch: Path | None) -> tuple[Dataset, bool]:
    """Read the dataset of a source; return it, and whether it has been checked."""
    if isinstance(source, Graph):
        return from_graph(check_graph(source)), True
    if not isinstance(source, str | Path):
        from hyrt.graph.formats.dgl import is_dgl, read_dgl
        from hyrt.graph.formats.pyg import read_pyg

        if is_dgl(source):
            return read_dgl(source), False
        return read_pyg(source), False
    name = str(source)
    check_source_name(name)
    if name.startswith(SYNTHETIC):
        from hyrt.graph.synthetic import generate, generate_hetero, parse_spec

        spec = parse_spec(name)
        return (generate_hetero if spec.is_hetero else generate)(spec, scratch), True
    path, shown = resolve_source(name), escape_undecodable(name)
    shown = shown if shown.isprintable() else repr(shown)
    if is_partition(path):
        from hyrt.graph.partition.read_parts import read_parts

        return read_parts(path, shown, check=check), True
    if path.is_file():
        if is_dgl_file(path):
            from hyrt.graph.formats.dgl import read_dgl

            return read_dgl(read_dgl_file(path, shown), shown), False
        return with_labels(read_npz(path, shown, scratch)).with_metadata_of(path), False
    if path.is_dir() and not (path / "raw").is_dir() and not (path / "processed").is_dir():
        return with_labels(read_folder(path, shown, check=check)).with_metadata_of(path), False
    from hyrt.graph.formats.ogb_dataset import read_ogb

    return replace(read_ogb(name, scratch), name=shown), False


def check_source_name(name: str) -> None:
    """Raise the DataError of `open_graph` if a name or path is not a dataset, without opening it."""
    if not name:
        raise DataError(f"the dataset name is empty: use {KINDS}")
    if "://" in name:
        raise DataError(f"{name}: hyrt cannot read URLs: download the file, and use its path")
    if name.startswith(SYNTHETIC):
        return
    path, shown = resolve_source(name), escape_undecodable(name)
    if is_path_too_long(path):
        raise DataError(f"{shown[:40]}... is too long for a path: use {KINDS}")
    base = name.removesuffix(":typed")
    if path.is_file() or path.is_dir() or resolve_source(base).is_dir():
        return
    if base == "mag240m" or name.startswith("ogbn-"):
        return
    problem = "neither a regular file nor a folder" if path.exists() else "no such file or folder"
    raise DataError(f"{shown}: {problem}; use {KINDS}")
