"""Heterogeneous datasets in the ogb package's folder layout: ogbn-mag (CSV), and all vertex types of MAG240M.

Hu et al., "Open Graph Benchmark", NeurIPS 2020; Hu et al., "OGB-LSC", 2021.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning, listed, warn_user
from hyrt.graph.csr import Store
from hyrt.graph.formats.ogb.ogb_files import (
    MAX_EDGES_IN_MEMORY,
    csv_blocks,
    csv_splits,
    csv_table,
    labels_of,
    load_tensors,
)
from hyrt.graph.formats.recorded_npy import map_npy
from hyrt.graph.formats.schema import Dataset, FeatureRows, table_name
from hyrt.graph.labels.label_kind import is_labelled
from hyrt.graph.typed.graph_types import GraphTypes, Relation
from hyrt.graph.typed.typed_csr import TypedEdges, TypedPiece
from hyrt.graph.typed.typed_dataset import TypedParts, typed_dataset
from hyrt.graph.typed.typed_graph import left_out_in_words

Array = NDArray[Any]
Splits = dict[str, NDArray[np.int64]]

SUFFIX = ":typed"
"""Suffix of the name of MAG240M that selects the heterogeneous graph instead of the papers only."""
_SEPARATOR = "___"
MAG240M_TYPES = ("paper", "author", "institution")
_PIECE = 1 << 22


def read_typed(name: str, folder: Path, scratch: Path | None) -> Dataset:
    """Read a heterogeneous dataset. Edges stay directed, and equal edges of a relation are merged.

    Vertices without a label get -1 and are removed from the splits.

    Parameters
    ----------
    name
        Name of the dataset, for messages.
    folder
        Folder of the dataset.
    scratch
        Folder for sorting the edges; None sorts them in memory.

    Raises
    ------
    DataError
        If a file is missing or damaged, or the folder is not a heterogeneous dataset.
    """
    if (folder / "processed" / "paper").is_dir():
        data, left_out = typed_dataset(name, _mag240m(name, folder, scratch), scratch)
    elif (folder / "raw" / "triplet-type-list.csv.gz").exists():
        data, left_out = typed_dataset(name, _csv_parts(name, folder, scratch), scratch)
    else:
        raise DataError(
            f"{name}: {folder} has no graph of several types as ogb lays it out: it has neither "
            f"processed/paper nor raw/triplet-type-list.csv.gz; without {SUFFIX}, it may open"
        )
    if left_out:
        warn_user(left_out_in_words(name, left_out), DataWarning)
    return data


def count_types(folder: Path) -> dict[str, int]:
    """Return the number of vertices per type of a CSV dataset.

    Raises
    ------
    DataError
        If the file with the counts is damaged or missing.
    """
    file = folder / "raw" / "num-node-dict.csv.gz"
    lines = _csv_texts(file)
    try:
        names, counts = lines[0], [int(count) for count in lines[1]]
        if len(names) != len(counts) or len(lines) != 2:
            raise ValueError("one line of counts is expected, one for each name")
    except (IndexError, ValueError) as error:
        raise DataError(f"{file} does not give the number of vertices of each type ({error})") from error
    return dict(zip(names, counts, strict=True))


def _csv_texts(file: Path) -> list[list[str]]:
    try:
        with gzip.open(file, "rt", encoding="utf-8", newline="") as handle:
            return [line for line in csv.reader(handle) if line]
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} cannot be read: missing, damaged or truncated ({error})") from error


def _types(counts: dict[str, int], triples: list[list[str]], target: str, location: Path) -> GraphTypes:
    for triple in triples:
        if len(triple) != 3 or triple[0] not in counts or triple[2] not in counts:
            raise DataError(
                f"{location}: the relation {_SEPARATOR.join(triple)} is not between two of the types "
                f"{listed(counts)}"
            )
    starts = np.concatenate([[0], np.cumsum(list(counts.values()))]).astype(np.int64)
    return GraphTypes(tuple(counts), starts, tuple(Relation(*triple) for triple in triples), target)


def _csv_parts(name: str, folder: Path, scratch: Path | None) -> TypedParts:
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
            f"{raw / 'node-label'} has labels of {len(labelled)} types of vertices, expected those of one"
        )
    target = labelled[0]
    types = _types(counts, _csv_texts(triples_file), target, triples_file)
    ends: list[tuple[Array, Array]] = []
    for number, relation in enumerate(types.relations):
        place = raw / "relations" / _SEPARATOR.join((relation.source, relation.name, relation.destination))
        if (place / "edge-feat.csv.gz").exists():
            raise DataError(
                f"{name} has features of edges, which hyrt cannot use yet: to train without them, move "
                f"{place / 'edge-feat.csv.gz'} elsewhere"
            )
        ends.append(_csv_edges(place / "edge.csv.gz", scratch and scratch / f"relation-{number}"))
    tables = {
        vertex_type: _csv_rows(table_name(name, vertex_type), file, count)
        for vertex_type, count in counts.items()
        if (file := raw / "node-feat" / vertex_type / "node-feat.csv.gz").exists()
    }
    labels = labels_of(csv_table(raw / "node-label" / target / "node-label.csv.gz", np.float64), folder)
    masks = _masks(csv_splits(folder, target), labels, counts[target], folder)
    return TypedParts(types, _pieces(ends), tables, labels, masks)


def _csv_edges(file: Path, scratch: Path | None) -> tuple[Array, Array]:
    """Read the endpoints of the edges of one relation; memory-mapped if there is a scratch folder."""
    if scratch is not None:
        scratch.mkdir()
    stores = [Store(np.dtype(np.int64), scratch and scratch / f"{end}.npy") for end in ("from", "to")]
    for block in csv_blocks(file, np.int64):
        if block.shape[1] != 2:
            raise DataError(f"{file}: {block.shape[1]} columns, expected source,destination")
        for store, column in zip(stores, block.T, strict=True):
            store.append(np.ascontiguousarray(column))
    return stores[0].finish(), stores[1].finish()


def _csv_rows(name: str, file: Path, count: int) -> Dataset:
    width = next(csv_blocks(file, np.float32), np.empty((0, 0))).shape[1]

    def blocks() -> Iterator[Array]:
        num_rows = 0
        for block in csv_blocks(file, np.float32):
            num_rows += len(block)
            if num_rows > count or block.shape[1] != width:
                raise DataError(
                    f"{file}: the rows from {num_rows - len(block)} on do not fit {count:,} vertices x "
                    f"{width} columns"
                )
            yield block
        if num_rows != count:
            raise DataError(f"{file} has {num_rows:,} rows for {count:,} vertices")

    return Dataset(name, {}, FeatureRows.streamed((count, width), np.dtype(np.float32), blocks))


def _mag240m(name: str, folder: Path, scratch: Path | None) -> TypedParts:
    meta = load_tensors(folder / "meta.pt")
    if not isinstance(meta, dict) or not all(
        isinstance(meta.get(vertex_type), int) for vertex_type in MAG240M_TYPES
    ):
        raise DataError(f"{folder / 'meta.pt'} does not give the numbers of {listed(MAG240M_TYPES)} vertices")
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
                f"{file}: {pairs.dtype.name} of shape {list(pairs.shape)}, expected integers [2, E]"
            )
        ends.append((pairs[0], pairs[1]))
    num_edges = sum(len(sources) for sources, _ in ends)
    if scratch is None and num_edges > MAX_EDGES_IN_MEMORY:
        raise DataError(
            f"{name}: the {num_edges:,} edges must be sorted on disk, once: hyrt data convert {name} FOLDER"
        )
    tables: dict[str, Dataset] = {}
    for vertex_type in counts:
        file = processed / vertex_type / "node_feat.npy"
        if not file.exists():
            continue
        rows = map_npy(file)
        if rows.ndim != 2:
            raise DataError(f"{file}: shape {list(rows.shape)}, expected [V, F]")
        shown = table_name(name, vertex_type)
        tables[vertex_type] = Dataset(shown, {}, FeatureRows.of(rows, mapped=True))
    labels = labels_of(map_npy(processed / "paper" / "node_label.npy"), folder)
    masks = _masks(mag240m_splits(folder), labels, counts["paper"], folder)
    return TypedParts(types, _pieces(ends), tables, labels, masks)


def mag240m_splits(folder: Path) -> Splits:
    """Read the papers of `train`, `val` and `test`.

    Raises
    ------
    DataError
        If the split file is damaged or missing.
    """
    split = load_tensors(folder / "split_dict.pt")
    try:
        test = split["test"] if "test" in split else split["test-dev"]
        splits = {"train": split["train"], "val": split["valid"], "test": test}
        return {key: np.asarray(value, np.int64).reshape(-1) for key, value in splits.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder / 'split_dict.pt'}: a split is missing ({error})") from error


def _masks(splits: Splits, labels: Array, count: int, folder: Path) -> dict[str, Array]:
    if len(labels) != count:
        raise DataError(f"{folder}: {len(labels):,} labels for {count:,} vertices")
    return {
        f"{split}_mask": mask_of(vertices, count, f"{folder}: {split} split") & is_labelled(labels)
        for split, vertices in splits.items()
    }


def mask_of(vertices: NDArray[np.int64], count: int, where: str) -> NDArray[np.bool_]:
    """Return a mask [count] of the listed vertices.

    Raises
    ------
    DataError
        If a number is not a vertex.
    """
    outside = (vertices < 0) | (vertices >= count)
    if outside.any():
        index = int(outside.argmax())
        raise DataError(f"{where}: value {vertices[index]} at position {index} is not a vertex")
    mask = np.zeros(count, np.bool_)
    mask[vertices] = True
    return mask


def _pieces(ends: list[tuple[Array, Array]]) -> TypedEdges:
    def stream() -> Iterator[TypedPiece]:
        for number, (sources, targets) in enumerate(ends):
            for start in range(0, len(sources), _PIECE):
                piece = slice(start, start + _PIECE)
                yield TypedPiece(number, sources[piece], targets[piece])

    return stream
