"""Construction of one CSR matrix from the edge streams of all relations, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph import kernels
from hyrt.graph.csr import ranges
from hyrt.graph.typed import typed_kernels
from hyrt.graph.typed.graph_types import GraphTypes
from hyrt.machine.cores import available_cores
from hyrt.machine.workers import Workers

Array = NDArray[Any]


class TypedPiece(NamedTuple):
    """Piece of the edges of one relation."""

    relation: int
    """Relation index."""
    sources: Array
    """[n] source vertices, numbered within their type."""
    targets: Array
    """[n] destination vertices, numbered within their type."""
    weights: Array | None = None
    """[n] float32; None if the relation has no weights (they are 1 if other relations have weights)."""


TypedEdges = Callable[[], Iterator[TypedPiece]]
"""Edges in consecutive pieces; each call restarts from the first piece."""

_MIN_ROWS = 1 << 10
_GRAIN = 1 << 16


def entry_bytes(weighted: bool) -> int:
    """Return the bytes of memory per entry that is built at once."""
    return 17 if weighted else 13


def relation_dtype(num_relations: int) -> np.dtype[Any]:
    """Return the smallest of int8, int16 and int32 that holds all relation indices."""
    for dtype in (np.int8, np.int16):
        if num_relations - 1 <= np.iinfo(dtype).max:
            return np.dtype(dtype)
    return np.dtype(np.int32)


def build_typed_csr(
    edges: TypedEdges,
    types: GraphTypes,
    *,
    emit: Callable[[Array, Array, Array | None], None],
    source: str,
    weighted: bool = False,
    range_entries: int = 1 << 62,
    threads: int | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Build CSR over incoming edges with rows sorted by relation, then by source; duplicate edges are merged.

    The stream is read once to count, and once more for each range of vertices whose rows fit the bound
    together. Loops from a vertex to itself are kept.

    Parameters
    ----------
    edges
        The edges of all relations, in any order.
    types
        What the numbers of vertices and relations stand for.
    emit
        Takes consecutive parts of the sources [n] int32 (int64 where V >= 2^31), numbered through all types,
        of the numbers of their relations [n], and of their weights [n] float32, or None.
    source
        Name for messages.
    weighted
        Whether edges have weights; those of equal edges are added up.
    range_entries
        Bound on the entries built at once (a single longer row is still built). Memory is `entry_bytes` for
        each of them, 24 bytes a vertex, and one piece of the stream.
    threads
        Threads that count, place and sort; all available CPUs by default. The result does not depend on it.

    Returns
    -------
    indptr
        [V+1] int64.
    given
        [R] int64, how many edges of each relation the stream has, equal ones counted as often as they come.

    Raises
    ------
    DataError
        If an edge has an end that is no vertex of its type: names relation, edge and the end.
    """
    count = types.num_vertices
    from_types, to_types = types.relation_sources, types.relation_destinations
    first_sources, first_targets = types.starts[from_types], types.starts[to_types]
    counts = np.zeros(count, np.int64)
    given = np.zeros(len(types.relations), np.int64)
    vertex_dtype = np.dtype(np.int32 if count < 2**31 else np.int64)
    key_dtype = np.dtype(np.int32 if count * len(types.relations) < 2**31 else np.int64)
    with Workers(threads or available_cores(), "relations") as workers:
        for piece in edges():
            relation = piece.relation
            _check_ends(types, piece, int(given[relation]), source)
            given[relation] += len(piece.targets)
            rows = types.interval(types.relations[relation].destination)
            _count(workers, piece.targets, int(first_targets[relation]), rows, counts)
        upper = np.zeros(count + 1, np.int64)
        np.cumsum(counts, out=upper[1:])
        for first, last in ranges(upper, range_entries):
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
            kept = counts[first:last]
            _sort(workers, starts, entries, weights, kept)
            left = kernels.close_gaps(starts, kept, entries)
            if weights is not None:
                kernels.close_gaps(starts, kept, weights)
                weights = weights[:left]
            dtypes = (vertex_dtype, relation_dtype(len(types.relations)))
            emit(*_decoded(workers, entries[:left], count, dtypes), weights)
    indptr = np.zeros(count + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    return indptr, given


Rows = tuple[int, int]
"""Row range: first row, and last row + 1."""


def _count(workers: Workers, targets: Array, shift: int, rows: Rows, counts: NDArray[np.int64]) -> None:
    low, high = rows

    def work(a: int, b: int) -> None:
        typed_kernels.count_targets(targets, shift, low + a, low + b, counts)

    workers.run(work, high - low, _share(high - low, workers.count))


def _place(
    workers: Workers,
    piece: TypedPiece,
    numbering: tuple[int, int],
    rows: Rows,
    first: int,
    out: tuple[Array, Array, Array | None],
) -> None:
    low, high = rows
    cursor, entries, weights = out
    given = piece.weights
    if weights is not None and given is None:
        given = np.ones(len(piece.targets), np.float32)

    def work(a: int, b: int) -> None:
        place = (*numbering, low + a, low + b, first, cursor, entries)
        if weights is None:
            typed_kernels.scatter_keys(piece.sources, piece.targets, *place)
        else:
            typed_kernels.scatter_weighted(piece.sources, piece.targets, given, *place, weights)

    workers.run(work, high - low, _share(high - low, workers.count))


def _sort(
    workers: Workers,
    starts: NDArray[np.int64],
    entries: Array,
    weights: Array | None,
    kept: NDArray[np.int64],
) -> None:
    def work(a: int, b: int) -> None:
        if weights is None:
            kernels.sort_rows(starts, a, b, entries, kept)
        else:
            kernels.sort_along(starts, a, b, entries, weights)
            typed_kernels.add_equal(starts, a, b, entries, weights, kept)

    workers.run(work, len(kept), max(_MIN_ROWS, len(kept) // (8 * workers.count)))


def _decoded(
    workers: Workers, entries: Array, num_vertices: int, dtypes: tuple[np.dtype[Any], np.dtype[Any]]
) -> tuple[Array, Array]:
    """Decode entries into sources and relations."""
    sources, relations = (np.empty(len(entries), dtype) for dtype in dtypes)

    def work(a: int, b: int) -> None:
        typed_kernels.decode(entries, num_vertices, a, b, sources, relations)

    workers.run(work, len(entries), _GRAIN)
    return sources, relations


def _share(rows: int, threads: int) -> int:
    """Return the rows per thread, at least `_MIN_ROWS` because every thread reads all edges."""
    return max(_MIN_ROWS, -(-rows // threads))


def _check_ends(types: GraphTypes, piece: TypedPiece, at: int, where: str) -> None:
    named = types.relations[piece.relation]
    for what, ends, vertex_type in (
        ("source", piece.sources, named.source),
        ("destination", piece.targets, named.destination),
    ):
        bound = types.count(vertex_type)
        bad = int(typed_kernels.first_beyond(ends, bound))
        if bad >= 0:
            raise DataError(
                f"{where}: relation {named}: edge {at + bad} has the {what} {ends[bad]}, which is not one of "
                f"the {bound:,} vertices of type {vertex_type!r}: they count from 0 within their type"
            )
