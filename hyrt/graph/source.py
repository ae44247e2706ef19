"""Opening a graph from whatever names one: a file, a folder, a generator, an OGB name, a PyG object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hyrt.errors import DataError
from hyrt.graph.folder import read_folder, verify_checksums
from hyrt.graph.graph import Graph
from hyrt.graph.normalize import Normalize, reject_large_mapped, scaled
from hyrt.graph.npz import read_npz
from hyrt.graph.schema import LARGE_BYTES, Dataset, check_dataset, from_graph, to_graph

SYNTHETIC = "synthetic:"
KINDS = "a .npz file, a folder of .npy files, 'synthetic:PRESET', 'ogbn-NAME' or 'mag240m'"


def open_graph(source: str | Path | Graph | Any, *, normalize: Normalize = "none", check: bool = False) -> Graph:
    """Open a graph and check it.

    Topology, labels, masks and sparse features are always checked through. Dense features are checked to be finite
    unless they are memory-mapped and larger than 1 GiB: those only with `check`.

    Parameters
    ----------
    source
        A `.npz` file or a folder of `.npy` files (memory-mapped) in the dataset schema; `synthetic:PRESET` with
        `,key=value` parameters; `ogbn-*` or `mag240m` through the ogb package; a PyG `Data`; or a Graph, which is
        returned as it is unless it is to be scaled.
    normalize
        `row` divides each feature row by its sum, `standard` scales columns to mean 0 and deviation 1.
    check
        Read everything: also large memory-mapped features, and a folder's checksums.

    Returns
    -------
    The graph: indptr int64, indices int32 where V < 2^31.

    Raises
    ------
    DataError
        Names source, key and the first bad position, or the remedy.
    """
    data = open_dataset(source, check=check)
    if normalize == "none" and isinstance(source, Graph):
        return source
    reject_large_mapped(data, normalize)
    return to_graph(scaled(data, normalize))


def open_dataset(source: str | Path | Graph | Any, *, check: bool = False) -> Dataset:
    """Open and check a source without reading dense features into memory.

    Parameters
    ----------
    source, check
        As for `open_graph`.

    Raises
    ------
    DataError
        As for `open_graph`.
    """
    if isinstance(source, Graph):
        data, trusted = from_graph(source), True
    elif isinstance(source, str | Path):
        data, trusted = _read_named(str(source), check)
    else:
        from hyrt.graph.pyg import read_pyg

        data, trusted = read_pyg(source), False
    if not trusted:
        rows = data.rows
        large = rows is not None and rows.mapped and rows.num_bytes > LARGE_BYTES
        check_dataset(data, features=check or not large)
    return data


def _read_named(name: str, check: bool) -> tuple[Dataset, bool]:
    """The dataset a string names, and whether it was made here and needs no check."""
    if name.startswith(SYNTHETIC):
        from hyrt.graph.synthetic import generate, parse_spec

        return generate(parse_spec(name)), True
    path = Path(name)
    if path.is_file():
        return read_npz(path, name), False
    if path.is_dir():
        if check:
            verify_checksums(path)
        return read_folder(path, name), False
    if name == "mag240m" or name.startswith("ogbn-"):
        from hyrt.graph.ogb_layout import read_ogb

        return read_ogb(name), False
    raise DataError(f"{name}: there is no such file or folder; a dataset is {KINDS}")
