"""Datasets in the folder layout of the ogb package: ogbn-* (CSV and binary) and MAG240M.

The ogb package is only used for downloads: its preprocessing has everything in memory, and its pickles are
not needed. Hu et al., "Open Graph Benchmark", NeurIPS 2020; Hu et al., "OGB-LSC", 2021.
"""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning, join_names, warn_user
from hyrt.graph.csr import ArrayBuilder, EdgeStream, build_csr
from hyrt.graph.formats.dataset_files import NpzMember, member_sizes
from hyrt.graph.formats.npy import map_npy
from hyrt.graph.formats.ogb_files import (
    MAX_EDGES_IN_MEMORY,
    convert_labels,
    download_ogb,
    find_ogb_folder,
    iter_csv_blocks,
    load_tensors,
    read_csv_splits,
    read_csv_table,
)
from hyrt.graph.formats.schema import Dataset, FeatureRows, feature_table_name
from hyrt.graph.hetero.csr import RelationEdges, RelationEdgeStream
from hyrt.graph.hetero.dataset import HeteroDatasetParts, assemble_dataset, describe_merged
from hyrt.graph.hetero.graph_types import GraphTypes, Relation
from hyrt.graph.labels import is_labelled

Array = NDArray[Any]
Splits = dict[str, NDArray[np.int64]]

HETERO_SUFFIX = ":typed"
"""Suffix of MAG240M's name that selects the heterogeneous graph instead of the graph of papers."""
_SEPARATOR = "___"
MAG240M_TYPES = ("paper", "author", "institution")
_PIECE = 1 << 22


def read_hetero_ogb(name: str, folder: Path, scratch: Path | None) -> Dataset:
    """Read a heterogeneous dataset. Edges stay directed, and equal edges of a relation are merged.

    Unlabelled vertices get -1 and are removed from the splits. Edges are sorted in `scratch`, or in memory if
    it is None. Raises DataError if a file is missing or damaged, or the dataset is homogeneous.
    """
    if (folder / "processed" / "paper").is_dir():
        parts = _mag240m(name, folder, scratch)
    elif (folder / "raw" / "triplet-type-list.csv.gz").exists():
        parts = _csv_parts(name, folder, scratch)
    else:
        raise DataError(
            f"{name}: {folder} is not a heterogeneous OGB dataset, because it has neither processed/paper "
            f"nor raw/triplet-type-list.csv.gz: open it without {HETERO_SUFFIX}"
        )
    data, merged = assemble_dataset(name, parts, scratch)
    if merged.any():
        warn_user(describe_merged(name, parts.types, merged), DataWarning)
    return data


def count_types(folder: Path) -> dict[str, int]:
    """Return the number of vertices per type in a CSV dataset. Raises DataError if the file is damaged or
    missing.
    """
    file = folder / "raw" / "num-node-dict.csv.gz"
    lines = _csv_texts(file)
    try:
        names, counts = lines[0], [int(count) for count in lines[1]]
        if len(names) != len(counts) or len(lines) != 2:
            raise ValueError("expected a line of type names, and a line with one count per name")
    except (IndexError, ValueError) as error:
        raise DataError(
            f"{file} does not contain the number of vertices of each type ({error}): download it again"
        ) from error
    return dict(zip(names, counts, strict=True))


def _csv_texts(file: Path) -> list[list[str]]:
    try:
        with gzip.open(file, "rt", encoding="utf-8", newline="") as handle:
            return [line for line in csv.reader(handle) if line]
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is missing, damaged or truncated ({error}): download it again") from error


def _types(counts: dict[str, int], triples: list[list[str]], target: str, location: Path) -> GraphTypes:
    for triple in triples:
        if len(triple) != 3 or triple[0] not in counts or triple[2] not in counts:
            raise DataError(
                f"{location}: the relation {_SEPARATOR.join(triple)} does not connect two of the types "
                f"{join_names(counts)}: download it again"
            )
    starts = np.concatenate([[0], np.cumsum(list(counts.values()))]).astype(np.int64)
    return GraphTypes(tuple(counts), starts, tuple(Relation(*triple) for triple in triples), target)


def _csv_parts(name: str, folder: Path, scratch: Path | None) -> HeteroDatasetParts:
    raw = folder / "raw"
    counts = count_types(folder)
    triples_file = raw / "triplet-type-list.csv.gz"
    labelled = [
        vertex_type
        for vertex_type in counts
        if (raw / "node-label" / vertex_type / "node-label.csv.gz").exists()
    ]
    if len(labelled) != 1:
        raise DataError(
            f"{raw / 'node-label'} has labels for {len(labelled)} vertex types, expected labels for one: "
            "move the others elsewhere"
        )
    target = labelled[0]
    types = _types(counts, _csv_texts(triples_file), target, triples_file)
    ends: list[tuple[Array, Array]] = []
    for number, relation in enumerate(types.relations):
        place = raw / "relations" / _SEPARATOR.join((relation.source, relation.name, relation.destination))
        if (place / "edge-feat.csv.gz").exists():
            raise DataError(
                f"{name} has edge features, which hyrt cannot use yet: to train without them, move "
                f"{place / 'edge-feat.csv.gz'} elsewhere"
            )
        ends.append(_csv_edges(place / "edge.csv.gz", scratch and scratch / f"relation-{number}"))
    tables = {
        vertex_type: _csv_rows(feature_table_name(name, vertex_type), file, count)
        for vertex_type, count in counts.items()
        if (file := raw / "node-feat" / vertex_type / "node-feat.csv.gz").exists()
    }
    labels = convert_labels(
        read_csv_table(raw / "node-label" / target / "node-label.csv.gz", np.float64), folder
    )
    masks = _masks(read_csv_splits(folder, target), labels, counts[target], folder)
    return HeteroDatasetParts(types, _pieces(ends), tables, labels, masks)


def _csv_edges(file: Path, scratch: Path | None) -> tuple[Array, Array]:
    """Read the endpoints of a relation's edges, memory-mapped if there is a scratch folder."""
    if scratch is not None:
        scratch.mkdir()
    stores = [ArrayBuilder(np.dtype(np.int64), scratch and scratch / f"{end}.npy") for end in ("from", "to")]
    for block in iter_csv_blocks(file, np.int64):
        if block.shape[1] != 2:
            raise DataError(
                f"{file} has {block.shape[1]} columns, expected source,destination: download it again"
            )
        for store, column in zip(stores, block.T, strict=True):
            store.append(np.ascontiguousarray(column))
    return stores[0].finish(), stores[1].finish()


def _csv_rows(name: str, file: Path, count: int) -> Dataset:
    width = next(iter_csv_blocks(file, np.float32), np.empty((0, 0))).shape[1]

    def blocks() -> Iterator[Array]:
        num_rows = 0
        for block in iter_csv_blocks(file, np.float32):
            num_rows += len(block)
            if num_rows > count or block.shape[1] != width:
                raise DataError(
                    f"{file}: rows {num_rows - len(block)} and following do not match {count:,} vertices x "
                    f"{width} columns: download it again"
                )
            yield block
        if num_rows != count:
            raise DataError(f"{file} has {num_rows:,} rows for {count:,} vertices: download it again")

    return Dataset(name, {}, FeatureRows.from_blocks((count, width), np.dtype(np.float32), blocks))


def _mag240m(name: str, folder: Path, scratch: Path | None) -> HeteroDatasetParts:
    meta = load_tensors(folder / "meta.pt")
    if not isinstance(meta, dict) or not all(
        isinstance(meta.get(vertex_type), int) for vertex_type in MAG240M_TYPES
    ):
        raise DataError(
            f"{folder / 'meta.pt'} does not contain the number of {join_names(MAG240M_TYPES)} vertices: "
            "download it again"
        )
    counts = {vertex_type: int(meta[vertex_type]) for vertex_type in MAG240M_TYPES}
    processed = folder / "processed"
    places = sorted(path for path in processed.glob(f"*{_SEPARATOR}*{_SEPARATOR}*") if path.is_dir())
    types = _types(counts, [place.name.split(_SEPARATOR) for place in places], "paper", processed)
    ends: list[tuple[Array, Array]] = []
    for place in places:
        file = place / "edge_index.npy"
        pairs = map_npy(file)
        if pairs.ndim != 2 or pairs.shape[0] != 2 or pairs.dtype.kind not in "iu":
            raise DataError(
                f"{file} is {pairs.dtype.name} of shape {list(pairs.shape)}, expected integers [2, E]: "
                "download it again"
            )
        ends.append((pairs[0], pairs[1]))
    num_edges = sum(len(sources) for sources, _ in ends)
    if scratch is None and num_edges > MAX_EDGES_IN_MEMORY:
        raise DataError(
            f"{name}: the {num_edges:,} edges must be sorted on disk first: run hyrt data convert {name} "
            "FOLDER"
        )
    tables: dict[str, Dataset] = {}
    for vertex_type in counts:
        file = processed / vertex_type / "node_feat.npy"
        if not file.exists():
            continue
        rows = map_npy(file)
        if rows.ndim != 2:
            raise DataError(f"{file} has shape {list(rows.shape)}, expected [V, F]: download it again")
        shown = feature_table_name(name, vertex_type)
        tables[vertex_type] = Dataset(shown, {}, FeatureRows.from_array(rows, mapped=True))
    labels = convert_labels(map_npy(processed / "paper" / "node_label.npy"), folder)
    masks = _masks(read_mag240m_splits(folder), labels, counts["paper"], folder)
    return HeteroDatasetParts(types, _pieces(ends), tables, labels, masks)


def read_mag240m_splits(folder: Path) -> Splits:
    """Read the papers of each split. Raises DataError if the split file is damaged or missing."""
    split = load_tensors(folder / "split_dict.pt")
    try:
        test = split["test"] if "test" in split else split["test-dev"]
        splits = {"train": split["train"], "val": split["valid"], "test": test}
        return {key: np.asarray(value, np.int64).reshape(-1) for key, value in splits.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{folder / 'split_dict.pt'} does not contain all splits ({error}): download it again"
        ) from error


def _masks(splits: Splits, labels: Array, count: int, folder: Path) -> dict[str, Array]:
    if len(labels) != count:
        raise DataError(f"{folder} has {len(labels):,} labels for {count:,} vertices: download it again")
    return {
        f"{split}_mask": build_mask(vertices, count, f"{folder}: {split} split") & is_labelled(labels)
        for split, vertices in splits.items()
    }


def build_mask(vertices: NDArray[np.int64], count: int, location: str) -> NDArray[np.bool_]:
    """Return a mask [count] of the listed vertices. Raises DataError if a number is not a vertex."""
    outside = (vertices < 0) | (vertices >= count)
    if outside.any():
        index = int(outside.argmax())
        raise DataError(
            f"{location}: value {vertices[index]} at position {index} is not a vertex: download it again"
        )
    mask = np.zeros(count, np.bool_)
    mask[vertices] = True
    return mask


def _pieces(ends: list[tuple[Array, Array]]) -> RelationEdgeStream:
    def stream() -> Iterator[RelationEdges]:
        for number, (sources, targets) in enumerate(ends):
            for start in range(0, len(sources), _PIECE):
                piece = slice(start, start + _PIECE)
                yield RelationEdges(number, sources[piece], targets[piece])

    return stream


def read_ogb(name: str, scratch: Path | None) -> Dataset:
    """Read an OGB node-classification dataset after downloading it if necessary.

    `name` is `ogbn-NAME` or `mag240m`, located by `find_ogb_folder`, or a dataset folder. Heterogeneous
    graphs (ogbn-mag, and mag240m if the name ends in `:typed`) stay directed, and others are symmetrized, as
    is usual. Equal edges are merged. Unlabelled vertices get -1 and are removed from the splits. The test
    labels of mag240m are not published, so its test split may be empty (compare on `val`).

    In `scratch` (in memory if it is None), edges are sorted, and features stored by columns are transposed.
    Raises DataError if the ogb package is required but missing, the dataset is multi-label, or a file is
    damaged.
    """
    plain = name.removesuffix(HETERO_SUFFIX)
    folder = find_ogb_folder(plain)
    if not os.path.isdir(folder):
        download_ogb(plain, folder)
    if (folder / "raw" / "triplet-type-list.csv.gz").exists() or plain != name:
        return read_hetero_ogb(name, folder, scratch)
    raw = folder / "raw"
    if (raw / "edge-feat.csv.gz").exists():
        raise DataError(
            f"{name} has edge features, which hyrt cannot use yet: to train without them, move "
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
            f"{name}: hyrt cannot read heterogeneous graphs in ogb's binary format, except ogbn-mag and "
            "mag240m:typed: open it with PyG, and pass the HeteroData to hyrt.load"
        )
    else:
        raise DataError(
            f"{folder} is not an OGB dataset, because it has no raw/edge.csv.gz, raw/data.npz or "
            "processed/paper: use a folder downloaded by ogb"
        )
    return _assemble(name, parts, scratch)


def count_vertices(folder: Path, *, all_types: bool = False) -> int:
    """Return the number of vertices in a downloaded dataset; for MAG240M, of papers unless `all_types`.

    Raises DataError if the file with the counts is damaged or missing.
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
            raise DataError(f"{meta_file} does not contain the number of papers: download it again")
        of_types = [meta[key] for key in MAG240M_TYPES if isinstance(meta.get(key), int)]
        return sum(of_types) if all_types else int(meta["paper"])
    counts = (
        NpzMember(data, "num_nodes_list", str(data)).read()
        if data.exists()
        else read_csv_table(count_file, np.int64)
    )
    if counts.size != 1:
        raise DataError(f"{folder} has {counts.size} graphs, expected one: use a dataset with one graph")
    return int(counts.reshape(-1)[0])


@dataclass(frozen=True, slots=True)
class _Parts:
    """Contents of an OGB dataset."""

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
            f"{name}: the {parts.num_edges:,} edges must be sorted on disk first: run hyrt data convert "
            f"{name} FOLDER"
        )
    count = parts.num_vertices
    if len(parts.labels) != count:
        raise DataError(
            f"{parts.folder} has {len(parts.labels):,} labels for {count:,} vertices: download it again"
        )
    indices = ArrayBuilder(
        np.dtype(np.int32 if count < 2**31 else np.int64), scratch and scratch / "indices.npy"
    )
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
        mask = build_mask(vertices, count, f"{parts.folder}: {split} split")
        arrays[f"{split}_mask"] = mask & is_labelled(parts.labels)
    return Dataset(name, arrays, parts.rows)


def _read_csv(folder: Path, scratch: Path | None) -> _Parts:
    raw = folder / "raw"
    count = count_vertices(folder)
    ends = _EdgeStore(scratch, count, str(raw / "edge.csv.gz"))
    for block in iter_csv_blocks(raw / "edge.csv.gz", np.int64):
        if block.shape[1] != 2:
            raise DataError(
                f"{raw / 'edge.csv.gz'} has {block.shape[1]} columns, expected source,target: download "
                "it again"
            )
        ends.append(block[:, 0], block[:, 1])
    features = raw / "node-feat.csv.gz"
    if not features.exists():
        raise DataError(f"{folder} has no vertex features, which hyrt needs: add raw/node-feat.csv.gz")
    width = next(iter_csv_blocks(features, np.float32)).shape[1]

    def blocks() -> Iterator[Array]:
        num_rows = 0
        for block in iter_csv_blocks(features, np.float32):
            num_rows += len(block)
            if num_rows > count or block.shape[1] != width:
                raise DataError(
                    f"{features}: rows {num_rows - len(block)} and following do not match {count:,} "
                    f"vertices x {width} columns: download it again"
                )
            yield block
        if num_rows != count:
            raise DataError(f"{features} has {num_rows:,} rows for {count:,} vertices: download it again")

    rows = FeatureRows.from_blocks((count, width), np.dtype(np.float32), blocks)
    labels = convert_labels(read_csv_table(raw / "node-label.csv.gz", np.float64), folder)
    return _Parts(folder, count, ends.num_edges, ends.finish(), rows, labels, read_csv_splits(folder))


def _read_binary(folder: Path, scratch: Path | None) -> _Parts:
    data = folder / "raw" / "data.npz"
    count = count_vertices(folder)
    member = NpzMember(data, "edge_index", str(data))
    shape = member.header.shape
    if len(shape) != 2 or shape[0] != 2 or member.header.dtype.kind not in "iu" or member.header.fortran:
        raise DataError(
            f"{data}: key 'edge_index' has shape {list(shape)}, expected row-major integers [2, E]: "
            "download it again"
        )
    if scratch is None and shape[1] > MAX_EDGES_IN_MEMORY:
        # Fail early instead of after hours of decompression. For mapped sources, `_assemble` checks this.
        raise DataError(
            f"{folder}: the {shape[1]:,} edges must be sorted on disk first: run hyrt data convert"
        )
    if member_sizes(data, str(data)).get("edge_feat"):
        raise DataError(
            f"{data}: key 'edge_feat': hyrt cannot use edge features yet: to train without them, write the "
            "file again without this key"
        )
    ends = _EdgeStore(scratch, count, f"{data}: key 'edge_index'")
    position = 0
    for piece in member.pieces(_PIECE):
        # The member has all sources, followed by all targets.
        cut = min(max(shape[1] - position, 0), len(piece))
        ends.append(piece[:cut], piece[cut:])
        position += len(piece)
    rows = NpzMember(data, "node_feat", str(data)).rows(scratch)
    label_file = folder / "raw" / "node-label.npz"
    labels = convert_labels(NpzMember(label_file, "node_label", str(label_file)).read(), folder)
    return _Parts(folder, count, shape[1], ends.finish(), rows, labels, read_csv_splits(folder))


def _read_mag240m(folder: Path) -> _Parts:
    paper = folder / "processed" / "paper"
    count = count_vertices(folder)
    edge_file = folder / "processed" / "paper___cites___paper" / "edge_index.npy"
    ends = map_npy(edge_file)
    if ends.ndim != 2 or ends.shape[0] != 2 or ends.dtype.kind not in "iu":
        raise DataError(
            f"{edge_file} is {ends.dtype.name} of shape {list(ends.shape)}, expected integers [2, E]: "
            "download it again"
        )
    features = map_npy(paper / "node_feat.npy")
    if features.ndim != 2:
        raise DataError(
            f"{paper / 'node_feat.npy'} has shape {list(features.shape)}, expected [V, F]: download it again"
        )
    labels = convert_labels(map_npy(paper / "node_label.npy"), folder)
    rows = FeatureRows.from_array(features, mapped=True)
    return _Parts(
        folder, count, int(ends.shape[1]), _pairs(ends[0], ends[1]), rows, labels, read_mag240m_splits(folder)
    )


class _EdgeStore:
    """Decoded edges in memory or on disk, which can be streamed repeatedly."""

    def __init__(self, scratch: Path | None, num_vertices: int, where: str) -> None:
        dtype = np.dtype(np.int32 if num_vertices < 2**31 else np.int64)
        self._sources = ArrayBuilder(dtype, scratch and scratch / "sources.npy")
        self._targets = ArrayBuilder(dtype, scratch and scratch / "targets.npy")
        self._count = num_vertices
        self._where = where
        self.num_edges = 0
        self._num_targets = 0

    def append(self, sources: Array, targets: Array) -> None:
        for store, part, first_edge in (
            (self._sources, sources, self.num_edges),
            (self._targets, targets, self._num_targets),
        ):
            # Check the values before they are converted to int32, because invalid ones could wrap around.
            outside = (part < 0) | (part >= self._count)
            if outside.any():
                i = int(outside.argmax())
                raise DataError(
                    f"{self._where}: value {part[i]} of edge {first_edge + i} is not one of the "
                    f"{self._count:,} vertices: download it again"
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
