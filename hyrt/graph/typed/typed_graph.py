"""Heterogeneous graphs from tables and edge lists in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning, warn_user
from hyrt.graph.formats.schema import SPARSE_KEYS, Dataset, FeatureRows, check_dataset, table_name, to_graph
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import SparseFeatures
from hyrt.graph.typed.graph_types import GraphTypes, Relation
from hyrt.graph.typed.typed_csr import TypedEdges, TypedPiece
from hyrt.graph.typed.typed_dataset import TypedParts, typed_dataset, typed_edges
from hyrt.graph.vertex_table import SPLITS

Array = NDArray[Any]

_PIECE = 1 << 22


def typed_graph(
    name: str,
    tables: Mapping[str, Array | SparseFeatures | int],
    relations: Mapping[tuple[str, str, str], tuple[Array, Array]],
    labels: Array,
    masks: Mapping[str, Array],
    target: str,
    weights: Mapping[tuple[str, str, str], Array] | None = None,
) -> Graph:
    """Build and check a heterogeneous graph; duplicate edges of a relation are merged.

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
    weights
        [e] the weights of the edges of some relations, above 0, or of none; edges of the others have 1 then.
        Those of equal edges are added up.

    Raises
    ------
    DataError
        Naming what does not fit.
    """
    for split in SPLITS:
        if split not in masks:
            raise DataError(f"{name}: no mask {split!r}: give one for each of train, val and test")
    starts = np.concatenate([[0], np.cumsum([_num_rows(table) for table in tables.values()])])
    types = GraphTypes(
        tuple(tables), starts.astype(np.int64), tuple(Relation(*names) for names in relations), target
    )
    data, left_out = typed_dataset(
        name,
        TypedParts(
            types,
            edge_pieces(name, types, relations, weights or {}),
            {
                vertex_type: _table(name, vertex_type, table)
                for vertex_type, table in tables.items()
                if not isinstance(table, int)
            },
            labels,
            {f"{split}_mask": mask for split, mask in masks.items()},
            weighted=bool(weights),
        ),
        None,
    )
    if left_out:
        warn_user(left_out_in_words(name, left_out, weighted=bool(weights)), DataWarning)
    check_dataset(data)
    return to_graph(data)


def edge_pieces(
    name: str,
    types: GraphTypes,
    relations: Mapping[tuple[str, str, str], tuple[Array, Array]],
    weights: Mapping[tuple[str, str, str], Array],
) -> TypedEdges:
    """Stream edges in memory by relation, in the order of `types`, with optional weights.

    Raises
    ------
    DataError
        If a relation has not as many sources as destinations, or weights; or there is none that has weights.
    """
    for triple in weights:
        if triple not in relations:
            raise DataError(
                f"{name}: weights are given for {' '.join(triple)}, which is not a relation: remove them"
            )
    for relation, (sources, targets) in zip(types.relations, relations.values(), strict=True):
        if len(sources) != len(targets):
            raise DataError(
                f"{name}: relation {relation} has {len(sources):,} sources and {len(targets):,} "
                "destinations: give one of each for every edge"
            )
    for triple, given in weights.items():
        if len(given) != len(relations[triple][0]):
            raise DataError(
                f"{name}: relation {' '.join(triple)} has {len(relations[triple][0]):,} edges and "
                f"{len(given):,} weights: give one for every edge"
            )

    def stream() -> Iterator[TypedPiece]:
        for number, (triple, (sources, targets)) in enumerate(relations.items()):
            given = weights.get(triple)
            for start in range(0, len(sources), _PIECE):
                piece = slice(start, start + _PIECE)
                yield TypedPiece(
                    number,
                    np.ascontiguousarray(sources[piece]),
                    np.ascontiguousarray(targets[piece]),
                    None if given is None else np.ascontiguousarray(given[piece], np.float32),
                )

    return stream


def edge_lists(graph: Graph) -> dict[Relation, tuple[Array, Array]]:
    """Return the edges of each relation: sources [e] and destinations [e], numbered within their types.

    Edges are sorted by destination, then by source.
    """
    types = graph.types
    if types is None:
        raise DataError(f"{graph.name}: has no types of vertices, and so no relations: give a typed graph")
    arrays = {"indptr": graph.topology.indptr, "indices": graph.topology.indices}
    assert graph.topology.edge_types is not None
    found: list[list[tuple[Array, Array]]] = [[] for _ in types.relations]
    for piece in typed_edges(arrays | {"edge_type": graph.topology.edge_types}, types)():
        found[piece.relation].append((piece.sources, piece.targets))
    empty = np.empty(0, graph.topology.indices.dtype)
    return {
        relation: (
            np.concatenate([empty, *(sources for sources, _ in pieces)]),
            np.concatenate([empty.astype(np.int64), *(targets for _, targets in pieces)]),
        )
        for relation, pieces in zip(types.relations, found, strict=True)
    }


def left_out_in_words(name: str, left_out: int, *, weighted: bool = False) -> str:
    """Format the warning about merged duplicate edges."""
    edges = "1 edge is" if left_out == 1 else f"{left_out:,} edges are"
    added = ", to whose weights theirs are added" if weighted else ""
    return f"{name}: {edges} left out: equal to others of the same relation{added}"


def _num_rows(table: Array | SparseFeatures | int) -> int:
    if isinstance(table, SparseFeatures):
        return len(table.indptr) - 1
    return table if isinstance(table, int) else len(table)


def _table(name: str, vertex_type: str, table: Array | SparseFeatures) -> Dataset:
    shown = table_name(name, vertex_type)
    if isinstance(table, SparseFeatures):
        shape = np.array([len(table.indptr) - 1, table.width], np.int64)
        values = (table.indptr, table.columns, table.values, shape)
        return Dataset(shown, dict(zip(SPARSE_KEYS, values, strict=True)), None)
    if table.ndim != 2:
        raise DataError(f"{shown}: features of shape {list(table.shape)}, expected [n, F]: reshape them")
    return Dataset(shown, {}, FeatureRows.of(np.ascontiguousarray(table)))
