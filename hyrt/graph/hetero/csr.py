"""Construction and renumbering of the CSR matrix of a heterogeneous graph, in bounded memory.

Rows are sorted by relation, then by source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph import kernels
from hyrt.graph import kernels as hetero_kernels
from hyrt.graph.csr import ArrayBuilder, iter_ranges
from hyrt.graph.hetero.graph_types import GraphTypes
from hyrt.runtime.hardware import available_cores
from hyrt.runtime.workers import Workers

Array = NDArray[Any]


class RelationEdges(NamedTuple):
    """Edges of one relation, possibly not all."""

    relation: int
    """Index of the relation."""
    sources: Array
    """Sources [n], numbered within their type."""
    targets: Array
    """Destinations [n], numbered within their type."""
    weights: Array | None = None
    """Weights [n] float32; None if the relation has none (its edges have weight 1 if others have weights)."""


RelationEdgeStream = Callable[[], Iterator[RelationEdges]]
"""Function that returns all edges in consecutive pieces at each call."""

_MIN_ROWS = 1 << 10
_GRAIN = 1 << 16


def bytes_per_entry(weighted: bool) -> int:
    """Return the memory in bytes per entry that is built at once."""
    return 17 if weighted else 13


def choose_relation_dtype(num_relations: int) -> np.dtype[Any]:
    """Return the smallest dtype out of int8, int16 and int32 for relation indices."""
    for dtype in (np.int8, np.int16):
        if num_relations - 1 <= np.iinfo(dtype).max:
            return np.dtype(dtype)
    return np.dtype(np.int32)


def build_hetero_csr(
    edges: RelationEdgeStream,
    types: GraphTypes,
    *,
    emit: Callable[[Array, Array, Array | None], None],
    source: str,
    weighted: bool = False,
    range_entries: int = 1 << 62,
    threads: int | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Build CSR over incoming edges with rows sorted by relation, then by source.

    Duplicate edges are merged. If `weighted`, their weights are summed, except in relations without weights.
    Self-loops are preserved. The stream is read once to count edges, and once more for each range of vertices
    whose rows fit into the bound.

    `emit` is called with consecutive parts of the sources [n] int32 (int64 if V >= 2^31), numbered across all
    types, the relation indices [n], and the weights [n] float32 or None. At most `range_entries` entries are
    built at once, unless a single row is longer. Memory use is `bytes_per_entry` for each entry, 24 bytes per
    vertex, and one piece of the stream. The result does not depend on `threads`, which are all available CPUs
    by default.

    Returns indptr [V+1] int64, and the number of edges of each relation in the stream [R] int64, including
    duplicates. Raises DataError with relation, edge and endpoint if an endpoint is not a vertex of its type.
    """
    count = types.num_vertices
    from_types, to_types = types.relation_sources, types.relation_destinations
    first_sources, first_targets = types.starts[from_types], types.starts[to_types]
    counts = np.zeros(count, np.int64)
    edge_counts = np.zeros(len(types.relations), np.int64)
    is_unweighted = np.zeros(len(types.relations), np.bool_)
    vertex_dtype = np.dtype(np.int32 if count < 2**31 else np.int64)
    key_dtype = np.dtype(np.int32 if count * len(types.relations) < 2**31 else np.int64)
    with Workers(threads or available_cores(), "relations") as workers:
        for piece in edges():
            relation = piece.relation
            _check_ends(types, piece, int(edge_counts[relation]), source)
            edge_counts[relation] += len(piece.targets)
            is_unweighted[relation] = piece.weights is None
            rows = types.interval(types.relations[relation].destination)
            _count(workers, piece.targets, int(first_targets[relation]), rows, counts)
        upper = np.zeros(count + 1, np.int64)
        np.cumsum(counts, out=upper[1:])
        for first, last in iter_ranges(upper, range_entries):
            starts = upper[first : last + 1] - upper[first]
            entries = np.empty(int(starts[-1]), key_dtype)
            weights = np.empty(len(entries), np.float32) if weighted else None
            cursor = starts[:-1].copy()
            for piece in edges():
                relation = piece.relation
                low, high = types.interval(types.relations[relation].destination)
                code = relation * count + int(first_sources[relation])
                shift = int(first_targets[relation])
                rows = (max(low, first), min(high, last))
                _place(workers, piece, (code, shift), rows, first, (cursor, entries, weights))
            lengths = counts[first:last]
            _sort(workers, starts, entries, weights, lengths)
            left = kernels.compact_rows(starts, lengths, entries)
            dtypes = (vertex_dtype, choose_relation_dtype(len(types.relations)))
            sources, relations = _decoded(workers, entries[:left], count, dtypes)
            if weights is not None:
                kernels.compact_rows(starts, lengths, weights)
                weights = weights[:left]
                weights[is_unweighted[relations]] = 1
            emit(sources, relations, weights)
    indptr = np.zeros(count + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    return indptr, edge_counts


Rows = tuple[int, int]
"""Range of rows: first row, and last row + 1."""


def _count(workers: Workers, targets: Array, shift: int, rows: Rows, counts: NDArray[np.int64]) -> None:
    low, high = rows

    def work(a: int, b: int) -> None:
        hetero_kernels.count_targets(targets, shift, low + a, low + b, counts)

    workers.run(work, high - low, _share(high - low, workers.count))


def _place(
    workers: Workers,
    piece: RelationEdges,
    numbering: tuple[int, int],
    rows: Rows,
    first: int,
    out: tuple[Array, Array, Array | None],
) -> None:
    low, high = rows
    cursor, entries, weights = out
    piece_weights = piece.weights
    if weights is not None and piece_weights is None:
        piece_weights = np.ones(len(piece.targets), np.float32)

    def work(a: int, b: int) -> None:
        place = (*numbering, low + a, low + b, first, cursor, entries)
        if weights is None:
            hetero_kernels.scatter_keys(piece.sources, piece.targets, *place)
        else:
            hetero_kernels.scatter_weighted(piece.sources, piece.targets, piece_weights, *place, weights)

    workers.run(work, high - low, _share(high - low, workers.count))


def _sort(
    workers: Workers,
    starts: NDArray[np.int64],
    entries: Array,
    weights: Array | None,
    lengths: NDArray[np.int64],
) -> None:
    def work(a: int, b: int) -> None:
        if weights is None:
            kernels.sort_rows(starts, a, b, entries, lengths)
        else:
            kernels.sort_rows_with_values(starts, a, b, entries, weights)
            hetero_kernels.merge_duplicates(starts, a, b, entries, weights, lengths)

    workers.run(work, len(lengths), max(_MIN_ROWS, len(lengths) // (8 * workers.count)))


def _decoded(
    workers: Workers, entries: Array, num_vertices: int, dtypes: tuple[np.dtype[Any], np.dtype[Any]]
) -> tuple[Array, Array]:
    """Decode entries to sources and relations."""
    sources, relations = (np.empty(len(entries), dtype) for dtype in dtypes)

    def work(a: int, b: int) -> None:
        hetero_kernels.decode(entries, num_vertices, a, b, sources, relations)

    workers.run(work, len(entries), _GRAIN)
    return sources, relations


def _share(rows: int, threads: int) -> int:
    """Return the number of rows per thread, at least `_MIN_ROWS`, because every thread reads all edges."""
    return max(_MIN_ROWS, -(-rows // threads))


def _check_ends(types: GraphTypes, piece: RelationEdges, at: int, where: str) -> None:
    named = types.relations[piece.relation]
    for role, ends, vertex_type in (
        ("source", piece.sources, named.source),
        ("destination", piece.targets, named.destination),
    ):
        bound = types.count(vertex_type)
        bad = int(hetero_kernels.find_out_of_range(ends, bound))
        if bad >= 0:
            raise DataError(
                f"{where}: relation {named}: edge {at + bad} has the {role} {ends[bad]}, which is not one "
                f"of the {bound:,} vertices of type {vertex_type!r}: number them from 0 within their type"
            )


ENTRIES = 1 << 23
"""Number of edges to renumber at once, at 14 bytes each. A longer row is renumbered at once too."""
_ROWS = 1 << 12


def renumber_hetero_edges(
    arrays: Mapping[str, Array],
    order: Array,
    starts: NDArray[np.int64],
    scratch: Path,
    workers: Workers,
) -> dict[str, Array]:
    """Return the arrays `indices` and `edge_type` in a new vertex order, sorted by relation and source.

    `arrays` is a checked heterogeneous dataset without edge weights or features. `order` [V] are the vertices
    in their new order, and `starts` [V+1] their row pointers. The new arrays are memory-mapped files in
    `scratch`.
    """
    places = np.empty_like(order)
    places[order] = np.arange(len(order), dtype=order.dtype)
    indptr, indices, numbers = (arrays[key] for key in ("indptr", "indices", "edge_type"))
    stores = {
        key: ArrayBuilder(arrays[key].dtype, scratch / f"renumbered-{key}.npy")
        for key in ("indices", "edge_type")
    }

    def rows(low: int, high: int) -> tuple[Array, Array]:
        local, chosen = starts[low : high + 1] - starts[low], order[low:high]
        keys = np.empty(int(local[-1]), np.int64)
        sources, relations = (np.empty(len(keys), store_of.dtype) for store_of in (indices, numbers))

        def work(first: int, last: int) -> None:
            hetero_kernels.renumber_keys(
                indptr, indices, numbers, chosen, places, len(order), local, first, last, keys
            )
            a, b = int(local[first]), int(local[last])
            hetero_kernels.decode(keys, len(order), a, b, sources, relations)

        workers.run(work, high - low, _ROWS)
        return sources, relations

    for low, high in iter_ranges(starts, ENTRIES):
        sources, relations = rows(low, high)
        stores["indices"].append(sources)
        stores["edge_type"].append(relations)
    return {key: store.finish() for key, store in stores.items()}
