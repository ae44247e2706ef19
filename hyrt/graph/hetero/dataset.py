"""Assembly of heterogeneous datasets and graphs from edge lists and tables, and reverse relations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, DataWarning, warn_user
from hyrt.formatting import short_repr
from hyrt.graph.check import reject
from hyrt.graph.csr import ArrayBuilder, iter_row_ranges
from hyrt.graph.formats.schema import (
    EDGE_FEATURES,
    EDGE_TIME,
    EDGE_TYPE,
    EDGE_WEIGHT,
    SPARSE_KEYS,
    Dataset,
    FeatureRows,
    check_dataset,
    feature_table_name,
    to_graph,
)
from hyrt.graph.graph import SPLITS, Graph
from hyrt.graph.hetero.csr import (
    RelationEdges,
    RelationEdgeStream,
    build_hetero_csr,
    bytes_per_entry,
    choose_relation_dtype,
)
from hyrt.graph.hetero.graph_types import RELATIONS, GraphTypes, Relation, types_from_arrays, types_to_arrays
from hyrt.graph.labels import get_label_kind
from hyrt.graph.links.edges import TimedEdges, order_edge_times
from hyrt.graph.row_source import SparseFeatures
from hyrt.graph.topology import Topology

_PREFIX = "rev_"


def reverse_relation(relation: Relation) -> Relation:
    """Return the reverse relation, whose name has the prefix `rev_`."""
    return Relation(relation.destination, f"{_PREFIX}{relation.name}", relation.source)


def add_reverse_relations(types: GraphTypes) -> GraphTypes:
    """Return the types with reverse relations added.

    The reverse of a relation between two types is named `rev_` plus the relation's name. It is added unless
    it exists. A relation within one type is its own reverse: its reversed edges are added to it.
    """
    known = set(types.relations)
    reverse_relations = [
        reverse_relation(each)
        for each in types.relations
        if each.source != each.destination
        and reverse_relation(each) not in known
        and not _is_reverse(each, known)
    ]
    return replace(types, relations=(*types.relations, *reverse_relations))


def _is_reverse(relation: Relation, known: set[Relation]) -> bool:
    """Return whether a relation is the reverse of a known one."""
    forward = Relation(relation.destination, relation.name.removeprefix(_PREFIX), relation.source)
    return relation.name.startswith(_PREFIX) and forward in known


def add_reverse_edges(edges: RelationEdgeStream, types: GraphTypes, wider: GraphTypes) -> RelationEdgeStream:
    """Add the reverse of each edge, with its weight, to a stream; self-loops are not duplicated.

    `wider` is the result of `add_reverse_relations` for `types`.
    """
    reverse_numbers = find_reverse_relations(types, wider)

    def stream() -> Iterator[RelationEdges]:
        for piece in edges():
            yield piece
            other = reverse_numbers[piece.relation]
            if other is None:
                continue
            reversed_edges = RelationEdges(other, piece.targets, piece.sources, piece.weights)
            yield _without_loops(reversed_edges) if other == piece.relation else reversed_edges

    return stream


def find_reverse_relations(types: GraphTypes, wider: GraphTypes) -> list[int | None]:
    """Return for each relation the index of the relation that gets its reversed edges, or None.

    `wider` is the result of `add_reverse_relations` for `types`.
    """
    places = {relation: number for number, relation in enumerate(wider.relations)}
    added = set(wider.relations[len(types.relations) :])
    return [
        number
        if relation.source == relation.destination
        else places[reverse_relation(relation)]
        if reverse_relation(relation) in added
        else None
        for number, relation in enumerate(types.relations)
    ]


def _without_loops(piece: RelationEdges) -> RelationEdges:
    apart = piece.sources != piece.targets
    if apart.all():
        return piece
    weights = None if piece.weights is None else piece.weights[apart]
    return RelationEdges(piece.relation, piece.sources[apart], piece.targets[apart], weights)


Array = NDArray[Any]

_PIECE = 1 << 22
BUILD_ENTRIES = 100_000_000
"""Number of unweighted entries that are built at once for a file (1.3 GB)."""


def build_bytes(num_entries: int, *, weighted: bool) -> int:
    """Return the maximum memory of the entries that are built at once for a file."""
    return min(bytes_per_entry(weighted=False) * BUILD_ENTRIES, bytes_per_entry(weighted) * num_entries)


@dataclass(frozen=True, slots=True)
class HeteroDatasetParts:
    """Parts of a heterogeneous dataset. Only the lengths of the tables have been checked."""

    types: GraphTypes
    edges: RelationEdgeStream
    """Edges of all relations."""
    tables: Mapping[str, Dataset]
    """Feature-only dataset of each type that has features."""
    labels: Array
    """Labels of the target type, [n] or [n, K]."""
    masks: Mapping[str, Array]
    """Masks `train_mask`, `val_mask`, `test_mask` and others of the target type, bool [n] or [n, K]."""
    weighted: bool = False
    """Whether any relation has edge weights. Edges of the other relations then get weight 1."""

    __repr__ = short_repr


def assemble_dataset(
    name: str, parts: HeteroDatasetParts, scratch: Path | None
) -> tuple[Dataset, NDArray[np.int64]]:
    """Assemble a heterogeneous dataset; return it with the number of duplicate edges merged in each relation
    [R].

    The edges are stored in `scratch`, or in memory if it is None. Raises DataError if an endpoint is not a
    vertex of its type, or the number of labels or masks is not that of the target type's vertices.
    """
    types = parts.types
    low, high = types.interval(types.target)
    for key, array in (("labels", parts.labels), *parts.masks.items()):
        if len(array) != high - low:
            raise reject(
                name,
                key,
                f"has {len(array):,} rows for {high - low:,} vertices of type {types.target!r}: use one row "
                "per vertex",
            )
    topology, merged = _topology(name, types, parts.edges, scratch, weighted=parts.weighted)
    arrays = types_to_arrays(types) | topology
    arrays["labels"] = labels_of_all(parts.labels, types)
    arrays |= {key: expand_mask(mask, types) for key, mask in parts.masks.items()}
    return Dataset(name, arrays, None, tables=dict(parts.tables)), merged


def _topology(
    name: str, types: GraphTypes, edges: RelationEdgeStream, scratch: Path | None, *, weighted: bool
) -> tuple[dict[str, Array], NDArray[np.int64]]:
    indices = ArrayBuilder(
        np.dtype(np.int32 if types.num_vertices < 2**31 else np.int64), scratch and scratch / "indices.npy"
    )
    numbers = ArrayBuilder(choose_relation_dtype(len(types.relations)), scratch and scratch / "edge_type.npy")
    values = ArrayBuilder(np.dtype(np.float32), scratch and scratch / "edge_weight.npy") if weighted else None
    num_edges = np.zeros(len(types.relations), np.int64)

    def emit(sources: Array, relations: Array, weights: Array | None) -> None:
        indices.append(sources)
        numbers.append(relations)
        num_edges[:] += np.bincount(relations, minlength=len(num_edges))
        if values is not None and weights is not None:
            values.append(weights)

    at_once = BUILD_ENTRIES * bytes_per_entry(weighted=False) // bytes_per_entry(weighted)
    bound = 1 << 62 if scratch is None else at_once
    indptr, edge_counts = build_hetero_csr(
        edges, types, emit=emit, source=name, weighted=weighted, range_entries=bound
    )
    arrays = {"indptr": indptr, "indices": indices.finish(), EDGE_TYPE: numbers.finish()}
    if values is not None:
        arrays[EDGE_WEIGHT] = values.finish()
    return arrays, edge_counts - num_edges


def labels_of_all(labels: Array, types: GraphTypes) -> Array:
    """Expand labels [n] or [n, K] of the target type to all vertices; the others are unlabelled."""
    if len(types.vertex_types) == 1:
        return labels
    low, high = types.interval(types.target)
    unknown = np.nan if get_label_kind(labels) == "numbers" else -1
    dtype = np.dtype(np.int8) if labels.dtype.kind in "bu" and labels.ndim == 2 else labels.dtype
    placed = np.full((types.num_vertices, *labels.shape[1:]), unknown, dtype)
    placed[low:high] = labels
    return placed


def expand_mask(mask: Array, types: GraphTypes) -> Array:
    """Expand a mask [n] or [n, K] of the target type to all vertices; it is False for the others."""
    if len(types.vertex_types) == 1:
        return mask
    low, high = types.interval(types.target)
    placed = np.zeros((types.num_vertices, *mask.shape[1:]), np.bool_)
    placed[low:high] = mask
    return placed


def stream_relation_edges(arrays: Mapping[str, Array], types: GraphTypes) -> RelationEdgeStream:
    """Stream the edges of a dataset by relation, with their weights."""
    first_sources = types.starts[types.relation_sources].tolist()
    first_targets = types.starts[types.relation_destinations].tolist()
    weights = arrays.get(EDGE_WEIGHT)

    def stream() -> Iterator[RelationEdges]:
        for starts, entries, first in iter_row_ranges(arrays["indptr"], arrays["indices"], _PIECE):
            rows = np.repeat(np.arange(first, first + len(starts) - 1), np.diff(starts))
            numbers = arrays[EDGE_TYPE][starts[0] : starts[-1]]
            for relation in np.unique(numbers).tolist():
                chosen = np.flatnonzero(numbers == relation)
                yield RelationEdges(
                    relation,
                    entries[chosen] - first_sources[relation],
                    rows[chosen] - first_targets[relation],
                    None if weights is None else weights[starts[0] : starts[-1]][chosen],
                )

    return stream


def _stream_weighted_relations(arrays: Mapping[str, Array], types: GraphTypes) -> RelationEdgeStream:
    """Stream the edges of a dataset, without weights in relations whose weights are all 1."""
    edges = stream_relation_edges(arrays, types)
    if EDGE_WEIGHT not in arrays:
        return edges
    weighted = {
        piece.relation for piece in edges() if piece.weights is not None and (piece.weights != 1).any()
    }
    return lambda: (
        piece if piece.relation in weighted else piece._replace(weights=None) for piece in edges()
    )


def add_reverse_to_dataset(data: Dataset, scratch: Path) -> Dataset:
    """Add reverse relations to a checked heterogeneous dataset; see `add_reverse_relations`.

    Weights of equal edges are summed, except in relations whose weights are all 1. The new edges are
    memory-mapped files in `scratch`. Raises DataError if the dataset is homogeneous or has edge features.
    """
    types = types_from_arrays(data.arrays)
    if types is None:
        raise DataError(
            f"{data.name}: --reverse applies only to heterogeneous graphs, but there is no key "
            f"'{RELATIONS}': remove --reverse"
        )
    if EDGE_FEATURES in data.arrays:
        raise reject(
            data.name, EDGE_FEATURES, "has no values for the reversed edges: remove --reverse, or this key"
        )
    wider = add_reverse_relations(types)
    edges = add_reverse_edges(_stream_weighted_relations(data.arrays, types), types, wider)
    topology, _ = _topology(data.name, wider, edges, scratch, weighted=EDGE_WEIGHT in data.arrays)
    if EDGE_TIME in data.arrays:
        topology[EDGE_TIME] = _times_with_reverse(data.arrays, types, wider, topology, scratch)
    return replace(data, arrays=data.arrays | types_to_arrays(wider) | topology, symmetric=None)


def _times_with_reverse(
    arrays: Mapping[str, Array],
    types: GraphTypes,
    wider: GraphTypes,
    reversed_arrays: Mapping[str, Array],
    scratch: Path,
) -> Array:
    """Return the edge times with those of reverse edges, which have the times of their originals."""
    times, numbers = arrays[EDGE_TIME], arrays[EDGE_TYPE]
    reverse_numbers = find_reverse_relations(types, wider)

    def edges() -> Iterator[TimedEdges]:
        for starts, entries, first in iter_row_ranges(arrays["indptr"], arrays["indices"], _PIECE):
            part = slice(starts[0], starts[-1])
            rows = np.repeat(np.arange(first, first + len(starts) - 1), np.diff(starts))
            pairs = np.stack([entries, rows], axis=1)
            for relation in np.unique(numbers[part]).tolist():
                chosen = numbers[part] == relation
                yield TimedEdges(pairs[chosen], times[part][chosen], relation)
                if (other := reverse_numbers[relation]) is not None:
                    yield TimedEdges(pairs[chosen][:, ::-1], times[part][chosen], other)

    topology = Topology(reversed_arrays["indptr"], reversed_arrays["indices"], reversed_arrays[EDGE_TYPE])
    dtype = np.dtype(np.float64 if times.dtype.kind == "f" else np.int64)
    return order_edge_times(topology, edges(), dtype, scratch / "edge_time.npy")


def build_hetero_graph(
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
        Name of the graph, for messages.
    tables
        Feature rows [n, F] of each vertex type, float32, float16 or sparse, or the number of vertices of a
        type without features. The order of the types determines the numbering.
    relations
        Sources [e] and destinations [e] of each relation (source type, name, destination type), numbered
        within their types, in any order.
    labels
        Labels of the target type's vertices, [n] or [n, K].
    masks
        Masks `train`, `val` and `test` of the target type's vertices, bool [n] or [n, K].
    target
        Vertex type that has labels.
    weights
        Positive edge weights [e] of some relations; edges of the others get weight 1. Weights of duplicate
        edges are summed, except in relations without weights.

    Raises
    ------
    DataError
        If the parts do not match.
    """
    for split in SPLITS:
        if split not in masks:
            raise DataError(f"{name} has no mask {split!r}: add one for each of train, val and test")
    starts = np.concatenate([[0], np.cumsum([_num_rows(table) for table in tables.values()])])
    types = GraphTypes(
        tuple(tables), starts.astype(np.int64), tuple(Relation(*names) for names in relations), target
    )
    data, merged = assemble_dataset(
        name,
        HeteroDatasetParts(
            types,
            stream_edge_lists(name, types, relations, weights or {}),
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
    if merged.any():
        warn_user(describe_merged(name, types, merged, weights or {}), DataWarning)
    check_dataset(data)
    return to_graph(data)


def stream_edge_lists(
    name: str,
    types: GraphTypes,
    relations: Mapping[tuple[str, str, str], tuple[Array, Array]],
    weights: Mapping[tuple[str, str, str], Array],
) -> RelationEdgeStream:
    """Stream edges in memory by relation in the order of `types`, with optional weights.

    Raises DataError if the numbers of sources, destinations and weights of a relation differ, or if there are
    weights for an unknown relation.
    """
    for triple in weights:
        if triple not in relations:
            raise DataError(
                f"{name}: there are weights for {' '.join(triple)}, which is not a relation: remove them"
            )
    for relation, (sources, targets) in zip(types.relations, relations.values(), strict=True):
        if len(sources) != len(targets):
            raise DataError(
                f"{name}: relation {relation} has {len(sources):,} sources and {len(targets):,} "
                "destinations: use one of each per edge"
            )
    for triple, relation_weights in weights.items():
        if len(relation_weights) != len(relations[triple][0]):
            raise DataError(
                f"{name}: relation {' '.join(triple)} has {len(relations[triple][0]):,} edges and "
                f"{len(relation_weights):,} weights: use one weight per edge"
            )

    def stream() -> Iterator[RelationEdges]:
        for number, (triple, (sources, targets)) in enumerate(relations.items()):
            relation_weights = weights.get(triple)
            for start in range(0, len(sources), _PIECE):
                piece = slice(start, start + _PIECE)
                yield RelationEdges(
                    number,
                    np.ascontiguousarray(sources[piece]),
                    np.ascontiguousarray(targets[piece]),
                    None
                    if relation_weights is None
                    else np.ascontiguousarray(relation_weights[piece], np.float32),
                )

    return stream


def get_edge_lists(graph: Graph) -> dict[Relation, tuple[Array, Array]]:
    """Return sources [e] and destinations [e] of the edges in each relation, numbered within their types.

    Edges are sorted by destination, then by source.
    """
    types = graph.types
    if types is None:
        raise DataError(f"{graph.name} has no vertex types and thus no relations: use a heterogeneous graph")
    arrays = {"indptr": graph.topology.indptr, "indices": graph.topology.indices}
    assert graph.topology.edge_types is not None
    found: list[list[tuple[Array, Array]]] = [[] for _ in types.relations]
    for piece in stream_relation_edges(arrays | {"edge_type": graph.topology.edge_types}, types)():
        found[piece.relation].append((piece.sources, piece.targets))
    empty = np.empty(0, graph.topology.indices.dtype)
    return {
        relation: (
            np.concatenate([empty, *(sources for sources, _ in pieces)]),
            np.concatenate([empty.astype(np.int64), *(targets for _, targets in pieces)]),
        )
        for relation, pieces in zip(types.relations, found, strict=True)
    }


def describe_merged(
    name: str,
    types: GraphTypes,
    merged: NDArray[np.int64],
    weighted: Collection[tuple[str, str, str]] = (),
) -> str:
    """Return the warning about merged duplicate edges; `merged` is their number in each relation [R].

    `weighted` are the relations that have weights.
    """
    total = int(merged.sum())
    edges = "1 duplicate edge was" if total == 1 else f"{total:,} duplicate edges were"
    counts = {types.relations[number]: int(merged[number]) for number in np.flatnonzero(merged)}
    shown = ", ".join(f"{relation} {count:,}" for relation, count in counts.items())
    are_summed = any((each.source, each.name, each.destination) in weighted for each in counts)
    summed = ", and their weights were summed" if are_summed else ""
    return f"{name}: {edges} merged with equal edges of the same relation ({shown}){summed}"


def _num_rows(table: Array | SparseFeatures | int) -> int:
    if isinstance(table, SparseFeatures):
        return len(table.indptr) - 1
    return table if isinstance(table, int) else len(table)


def _table(name: str, vertex_type: str, table: Array | SparseFeatures) -> Dataset:
    shown = feature_table_name(name, vertex_type)
    if isinstance(table, SparseFeatures):
        shape = np.array([len(table.indptr) - 1, table.width], np.int64)
        values = (table.indptr, table.columns, table.values, shape)
        return Dataset(shown, dict(zip(SPARSE_KEYS, values, strict=True)), None)
    if table.ndim != 2:
        raise DataError(f"{shown}: features have shape {list(table.shape)}, expected [n, F]: reshape them")
    return Dataset(shown, {}, FeatureRows.from_array(np.ascontiguousarray(table)))
