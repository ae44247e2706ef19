"""A typed graph of what a program has in memory: tables of vertices, and lists of edges."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning
from hyrt.graph.check import reject
from hyrt.graph.csr import Store
from hyrt.graph.graph import Graph
from hyrt.graph.labels.label_kind import label_kind
from hyrt.graph.row_source import DenseFeatures, RowSource, SparseFeatures
from hyrt.graph.topology import Topology
from hyrt.graph.typed.graph_types import GraphTypes, Relation
from hyrt.graph.typed.typed_csr import build_typed_csr, relation_dtype
from hyrt.graph.typed.typed_rows import TypedRows
from hyrt.graph.vertex_table import SPLITS, VertexTable
from hyrt.machine.workers import current_workers

Array = NDArray[Any]

_PIECE = 1 << 22


def typed_graph(
    name: str,
    tables: Mapping[str, Array | SparseFeatures | int],
    relations: Mapping[tuple[str, str, str], tuple[Array, Array]],
    labels: Array,
    masks: Mapping[str, Array],
    target: str,
) -> Graph:
    """Make a typed graph; what is wrong with its edges is an error, equal edges of a relation are one.

    Parameters
    ----------
    name
        The graph's name, for messages.
    tables
        For each type of vertices, in the order that vertices are numbered in: its rows [n, F], float32 or
        float16 or sparse; or the number of its vertices, where it has no features.
    relations
        (type of sources, name, type of destinations) → sources [e] and destinations [e], both numbered within
        their types, in any order.
    labels
        [n] or [n, K] labels of the target type's vertices.
    masks
        `train`, `val` and `test`: bool [n] or [n, K] of the target type's vertices.
    target
        The type whose vertices have labels.

    Raises
    ------
    DataError
        Naming what does not fit.
    """
    counts = [_num_rows(table) for table in tables.values()]
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    types = GraphTypes(tuple(tables), starts, tuple(Relation(*names) for names in relations), target)
    low, high = types.interval(target)
    for key, array in (("labels", labels), *masks.items()):
        if len(array) != high - low:
            raise reject(
                name,
                key,
                f"has {len(array):,} rows for {high - low:,} vertices of type {target!r}: give one each",
            )
    for split in SPLITS:
        if split not in masks:
            raise DataError(f"{name}: no mask {split!r}: give one for each of train, val and test")

    def edges() -> Iterator[tuple[int, Array, Array]]:
        for number, (sources, targets) in enumerate(relations.values()):
            for start in range(0, len(sources), _PIECE):
                yield number, sources[start : start + _PIECE], targets[start : start + _PIECE]

    for relation, (sources, targets) in zip(types.relations, relations.values(), strict=True):
        if len(sources) != len(targets):
            raise DataError(
                f"{name}: relation {relation} has {len(sources):,} sources and {len(targets):,} "
                "destinations: give one of each for every edge"
            )
    indices = Store(np.dtype(np.int32 if types.num_vertices < 2**31 else np.int64))
    numbers = Store(relation_dtype(len(types.relations)))

    def emit(part: Array, of_relations: Array) -> None:
        indices.append(part)
        numbers.append(of_relations)

    indptr, given = build_typed_csr(edges, types, emit=emit, source=name, threads=current_workers().count)
    topology = Topology(indptr, indices.finish(), numbers.finish())
    if left_out := int(given.sum()) - topology.num_edges:
        warnings.warn(
            f"{name}: {left_out:,} of {int(given.sum()):,} edges are left out: they equal "
            "others of their relation",
            DataWarning,
            stacklevel=2,
        )
    rows = TypedRows(types, tuple(_row_source(table) for table in tables.values()))
    table = VertexTable(
        rows, labels_of_all(labels, types), {key: mask_of_all(mask, types) for key, mask in masks.items()}
    )
    return Graph(name, topology, table, types=types)


def labels_of_all(labels: Array, types: GraphTypes) -> Array:
    """Labels [n] or [n, K] of the target type as those of all vertices: elsewhere nothing is known."""
    if len(types.vertex_types) == 1:
        return labels
    low, high = types.interval(types.target)
    unknown = np.nan if label_kind(labels) == "numbers" else -1
    dtype = np.dtype(np.int8) if labels.dtype.kind in "bu" and labels.ndim == 2 else labels.dtype
    placed = np.full((types.num_vertices, *labels.shape[1:]), unknown, dtype)
    placed[low:high] = labels
    return placed


def mask_of_all(mask: Array, types: GraphTypes) -> NDArray[np.bool_]:
    """A mask [n] or [n, K] of the target type as that of all vertices: False elsewhere."""
    if len(types.vertex_types) == 1:
        return mask.astype(np.bool_, copy=False)
    low, high = types.interval(types.target)
    placed = np.zeros((types.num_vertices, *mask.shape[1:]), np.bool_)
    placed[low:high] = mask
    return placed


def _num_rows(table: Array | SparseFeatures | int) -> int:
    if isinstance(table, SparseFeatures):
        return len(table.indptr) - 1
    return table if isinstance(table, int) else len(table)


def _row_source(table: Array | SparseFeatures | int) -> RowSource | None:
    if isinstance(table, int):
        return None
    return table if isinstance(table, SparseFeatures) else DenseFeatures(table)
