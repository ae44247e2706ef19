"""Datasets in the ogb package's folder layout: ogbn-* (CSV and binary) and the papers of MAG240M.

The ogb package only downloads. Its files are read here, because its preprocessing holds everything in memory,
and to avoid its pickles. Hu et al., "Open Graph Benchmark", NeurIPS 2020; Hu et al., "OGB-LSC", 2021.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.csr import EdgeStream, Store, build_csr
from hyrt.graph.formats.npz import NpzMember, member_sizes
from hyrt.graph.formats.ogb.ogb_files import (
    MAX_EDGES_IN_MEMORY,
    csv_blocks,
    csv_splits,
    csv_table,
    labels_of,
    load_tensors,
)
from hyrt.graph.formats.ogb.ogb_types import (
    MAG240M_TYPES,
    SUFFIX,
    count_types,
    mag240m_splits,
    mask_of,
    read_typed,
)
from hyrt.graph.formats.ogb_download import download, find_folder
from hyrt.graph.formats.recorded_npy import map_npy
from hyrt.graph.formats.schema import Dataset, FeatureRows
from hyrt.graph.labels.label_kind import is_labelled

Array = NDArray[Any]

_PIECE = 1 << 22


def read_ogb(name: str, scratch: Path | None) -> Dataset:
    """Read an OGB node-classification dataset, and download it first if necessary.

    Heterogeneous graphs (ogbn-mag, and mag240m if its name ends in `:typed`) keep their edge directions.
    Other graphs are symmetrized, as is usual for them; of equal edges, one is stored. Vertices without a
    label get -1 and are removed from the splits: mag240m publishes no test labels, so its test split may be
    empty (compare on `val`).

    Parameters
    ----------
    name
        `ogbn-NAME` or `mag240m`, located by `find_folder`, or a folder with one of these datasets.
    scratch
        Folder for sorting the edges and for transposing features stored by columns; None does both in memory.

    Raises
    ------
    DataError
        If the ogb package is required but missing, the dataset is multi-label, or a file is damaged.
    """
    plain = name.removesuffix(SUFFIX)
    folder = find_folder(plain)
    if not os.path.isdir(folder):
        download(plain, folder)
    if (folder / "raw" / "triplet-type-list.csv.gz").exists() or plain != name:
        return read_typed(name, folder, scratch)
    raw = folder / "raw"
    if (raw / "edge-feat.csv.gz").exists():
        raise DataError(
            f"{name} has features of edges, which hyrt cannot use yet: to train without them, move "
            f"{raw / 'edge-feat.csv.gz'} elsewhere"
        )
    if (folder / "processed" / "paper" / "node_feat.npy").exists():
        parts = _read_mag240m(folder)
    elif (raw / "data.npz").exists():
        parts = _read_binary(folder, scratch)
    elif (raw / "edge.csv.gz").exists():
        parts = _read_csv(folder, scratch)
    elif (raw / "edge_index_dict.npz").exists():
        raise DataError(
            f"{name}: hyrt cannot read typed graphs in ogb's binary form, except ogbn-mag and "
            "mag240m:typed: open it with PyG, and give the HeteroData to hyrt.load"
        )
    else:
        raise DataError(
            f"{folder}: not an OGB dataset: it has no raw/edge.csv.gz, raw/data.npz or processed/paper"
        )
    return _assemble(name, parts, scratch)


def count_vertices(folder: Path, *, typed: bool = False) -> int:
    """Return the number of vertices of a downloaded dataset; with `typed`, of all types of MAG240M instead of
    papers only.

    Raises
    ------
    DataError
        If the file with the counts is damaged or missing.
    """
    data, count_file, meta_file = (
        folder / "raw" / "data.npz",
        folder / "raw" / "num-node-list.csv.gz",
        folder / "meta.pt",
    )
    if (folder / "raw" / "num-node-dict.csv.gz").exists():
        return sum(count_types(folder).values())
    if meta_file.exists():
        meta = load_tensors(meta_file)
        if not isinstance(meta, dict) or not isinstance(meta.get("paper"), int):
            raise DataError(f"{meta_file} does not give the number of papers")
        of_types = [meta[key] for key in MAG240M_TYPES if isinstance(meta.get(key), int)]
        return sum(of_types) if typed else int(meta["paper"])
    counts = (
        NpzMember(data, "num_nodes_list", str(data)).read()
        if data.exists()
        else csv_table(count_file, np.int64)
    )
    if counts.size != 1:
        raise DataError(f"{folder} has {counts.size} graphs, expected one")
    return int(counts.reshape(-1)[0])


@dataclass(frozen=True, slots=True)
class _Parts:
    """Contents of an OGB dataset's files."""

    folder: Path
    num_vertices: int
    num_edges: int
    edges: EdgeStream
    rows: FeatureRows
    labels: Array
    splits: dict[str, NDArray[np.int64]]


def _assemble(name: str, parts: _Parts, scratch: Path | None) -> Dataset:
    if scratch is None and parts.num_edges > MAX_EDGES_IN_MEMORY:
        raise DataError(
            f"{name}: the {parts.num_edges:,} edges must be sorted on disk, once: hyrt data convert "
            f"{name} FOLDER"
        )
    count = parts.num_vertices
    if len(parts.labels) != count:
        raise DataError(f"{parts.folder}: {len(parts.labels):,} labels for {count:,} vertices")
    indices = Store(np.dtype(np.int32 if count < 2**31 else np.int64), scratch and scratch / "indices.npy")
    indptr = build_csr(
        parts.edges,
        count,
        symmetric=True,
        self_loops=True,
        emit=indices.append,
        source=name,
        range_entries=indices.range_entries,
    )
    arrays: dict[str, Array] = {"indptr": indptr, "indices": indices.finish(), "labels": parts.labels}
    for split, vertices in parts.splits.items():
        mask = mask_of(vertices, count, f"{parts.folder}: {split} split")
        arrays[f"{split}_mask"] = mask & is_labelled(parts.labels)
    return Dataset(name, arrays, parts.rows)


def _read_csv(folder: Path, scratch: Path | None) -> _Parts:
    raw = folder / "raw"
    count = count_vertices(folder)
    ends = _EdgeStore(scratch, count, str(raw / "edge.csv.gz"))
    for block in csv_blocks(raw / "edge.csv.gz", np.int64):
        if block.shape[1] != 2:
            raise DataError(f"{raw / 'edge.csv.gz'}: {block.shape[1]} columns, expected source,target")
        ends.append(block[:, 0], block[:, 1])
    features = raw / "node-feat.csv.gz"
    if not features.exists():
        raise DataError(f"{folder} has no vertex features (raw/node-feat.csv.gz), which hyrt needs")
    width = next(csv_blocks(features, np.float32)).shape[1]

    def blocks() -> Iterator[Array]:
        num_rows = 0
        for block in csv_blocks(features, np.float32):
            num_rows += len(block)
            if num_rows > count or block.shape[1] != width:
                raise DataError(
                    f"{features}: the rows from {num_rows - len(block)} on do not fit {count:,} vertices x "
                    f"{width} columns"
                )
            yield block
        if num_rows != count:
            raise DataError(f"{features} has {num_rows:,} rows for {count:,} vertices")

    rows = FeatureRows.streamed((count, width), np.dtype(np.float32), blocks)
    labels = labels_of(csv_table(raw / "node-label.csv.gz", np.float64), folder)
    return _Parts(folder, count, ends.num_edges, ends.finish(), rows, labels, csv_splits(folder))


def _read_binary(folder: Path, scratch: Path | None) -> _Parts:
    data = folder / "raw" / "data.npz"
    count = count_vertices(folder)
    member = NpzMember(data, "edge_index", str(data))
    shape = member.header.shape
    if len(shape) != 2 or shape[0] != 2 or member.header.dtype.kind not in "iu" or member.header.fortran:
        raise DataError(f"{data}: key 'edge_index': shape {list(shape)}, expected row-major integers [2, E]")
    if scratch is None and shape[1] > MAX_EDGES_IN_MEMORY:
        # Check this before hours of decompression; `_assemble` checks it for mapped sources.
        raise DataError(f"{folder}: the {shape[1]:,} edges must be sorted on disk, once: hyrt data convert")
    if member_sizes(data, str(data)).get("edge_feat"):
        raise DataError(
            f"{data}: key 'edge_feat': hyrt cannot use features of edges yet: to train without them, write "
            "the file again without this key"
        )
    ends = _EdgeStore(scratch, count, f"{data}: key 'edge_index'")
    position = 0
    for piece in member.pieces(_PIECE):
        # The member stores all sources, followed by all targets.
        cut = min(max(shape[1] - position, 0), len(piece))
        ends.append(piece[:cut], piece[cut:])
        position += len(piece)
    rows = NpzMember(data, "node_feat", str(data)).rows(scratch)
    label_file = folder / "raw" / "node-label.npz"
    labels = labels_of(NpzMember(label_file, "node_label", str(label_file)).read(), folder)
    return _Parts(folder, count, shape[1], ends.finish(), rows, labels, csv_splits(folder))


def _read_mag240m(folder: Path) -> _Parts:
    paper = folder / "processed" / "paper"
    count = count_vertices(folder)
    edge_file = folder / "processed" / "paper___cites___paper" / "edge_index.npy"
    ends = map_npy(edge_file)
    if ends.ndim != 2 or ends.shape[0] != 2 or ends.dtype.kind not in "iu":
        raise DataError(
            f"{edge_file}: {ends.dtype.name} of shape {list(ends.shape)}, expected integers [2, E]"
        )
    features = map_npy(paper / "node_feat.npy")
    if features.ndim != 2:
        raise DataError(f"{paper / 'node_feat.npy'}: shape {list(features.shape)}, expected [V, F]")
    labels = labels_of(map_npy(paper / "node_label.npy"), folder)
    rows = FeatureRows.of(features, mapped=True)
    return _Parts(
        folder, count, int(ends.shape[1]), _pairs(ends[0], ends[1]), rows, labels, mag240m_splits(folder)
    )


class _EdgeStore:
    """Decoded edges, in memory or on disk, that can be streamed repeatedly."""

    def __init__(self, scratch: Path | None, num_vertices: int, where: str) -> None:
        dtype = np.dtype(np.int32 if num_vertices < 2**31 else np.int64)
        self._sources = Store(dtype, scratch and scratch / "sources.npy")
        self._targets = Store(dtype, scratch and scratch / "targets.npy")
        self._count = num_vertices
        self._where = where
        self.num_edges = 0
        self._num_targets = 0

    def append(self, sources: Array, targets: Array) -> None:
        for store, part, first_edge in (
            (self._sources, sources, self.num_edges),
            (self._targets, targets, self._num_targets),
        ):
            # Check before the conversion to int32, in which invalid values could wrap around.
            outside = (part < 0) | (part >= self._count)
            if outside.any():
                i = int(outside.argmax())
                raise DataError(
                    f"{self._where}: value {part[i]} of edge {first_edge + i} is not one of the "
                    f"{self._count:,} vertices"
                )
            if len(part):
                store.append(part.astype(np.int32 if self._count < 2**31 else np.int64))
        self.num_edges += len(sources)
        self._num_targets += len(targets)

    def finish(self) -> EdgeStream:
        return _pairs(self._sources.finish(), self._targets.finish())


def _pairs(sources: Array, targets: Array) -> EdgeStream:
    def stream() -> Iterator[tuple[Array, Array]]:
        for start in range(0, len(sources), _PIECE):
            yield sources[start : start + _PIECE], targets[start : start + _PIECE]

    return stream
