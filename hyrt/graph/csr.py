"""Construction of CSR with sorted rows from a stream of edges, in bounded memory.

The stream is read once to count edges, and once more for each range of vertices whose rows fit into memory.
Nothing is written to temporary files, and the result does not depend on the bound.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph import kernels
from hyrt.graph.formats.npy import NpyWriter, map_npy
from hyrt.runtime.hardware import available_cores

Array = NDArray[Any]
Item = TypeVar("Item")
Result = TypeVar("Result")


EdgeStream = Callable[[], Iterator[tuple[Array, Array]]]
"""Function that returns all edges in consecutive pieces (sources [n], targets [n]) at each call."""

RANGE_ENTRIES = 210_000_000
"""Number of entries that are built at once for a file (840 MB)."""
_RANGE = 1 << 24


class ArrayBuilder:
    """Array that grows by rows of shape `row`. It is in memory, or in a .npy file that is mapped when it is
    complete.
    """

    def __init__(
        self, dtype: np.dtype[np.generic], file: Path | None = None, row: tuple[int, ...] = ()
    ) -> None:
        self._dtype = dtype
        self._row = row
        self._file = file
        self._writer = None if file is None else NpyWriter(file, dtype, row)
        self._parts: list[Array] = []

    @property
    def range_entries(self) -> int:
        """Number of entries to build at once."""
        return 1 << 62 if self._file is None else RANGE_ENTRIES

    def append(self, part: Array) -> None:
        if self._writer is None:
            self._parts.append(part)
        else:
            self._writer.append(part)

    def close(self) -> None:
        """Close the file, whether or not it is complete. Repeated calls have no effect."""
        if self._writer is not None:
            self._writer.close()

    def finish(self) -> Array:
        """Return the complete array."""
        if self._writer is not None and self._file is not None:
            self._writer.close()
            return map_npy(self._file)
        if len(self._parts) == 1:
            return self._parts[0]
        return np.concatenate([np.empty((0, *self._row), self._dtype), *self._parts])


def map_in_order(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], max_pending: int
) -> Iterator[Result]:
    """Yield `function(item)` in the order of the items; at most `max_pending` results are computed ahead."""
    pending: deque[Future[Result]] = deque()
    for item in items:
        pending.append(pool.submit(function, item))
        if len(pending) > max_pending:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def build_csr(
    edges: EdgeStream,
    num_vertices: int,
    *,
    symmetric: bool,
    self_loops: bool,
    emit: Callable[[Array], None],
    source: str,
    range_entries: int = 1 << 62,
    threads: int | None = None,
) -> NDArray[np.int64]:
    """Build CSR over incoming edges without duplicates; return indptr [V+1] int64.

    `emit` is called with the indices [n] int32 (int64 if V >= 2^31) of consecutive ranges of rows. A range
    has at most `range_entries` entries, unless a single row is longer. Memory use is 4 to 8 bytes per entry
    of a range, 24 bytes per vertex, and one piece of the stream. If `symmetric`, the reverse of each edge is
    stored too. The result does not depend on `threads`, which are all available CPUs by default.

    Raises DataError if an endpoint is outside 0..V-1.
    """
    counts = np.zeros(num_vertices, np.int64)
    at = 0
    for sources, targets in edges():
        bad = int(kernels.find_invalid_edge(sources, targets, num_vertices))
        if bad >= 0:
            raise DataError(
                f"{source}: edge {at + bad} ({sources[bad]} → {targets[bad]}) has an endpoint that is not "
                f"one of the {num_vertices:,} vertices: number them from 0"
            )
        kernels.count_edges(sources, targets, symmetric, self_loops, counts)
        at += len(sources)
    upper = np.zeros(num_vertices + 1, np.int64)
    np.cumsum(counts, out=upper[1:])
    dtype = np.dtype(np.int32 if num_vertices < 2**31 else np.int64)
    workers = threads or available_cores()
    with ThreadPoolExecutor(workers) as pool:
        for low, high in iter_ranges(upper, range_entries):
            starts = upper[low : high + 1] - upper[low]
            entries = np.empty(int(starts[-1]), dtype)
            cursor = starts[:-1].copy()
            for sources, targets in edges():
                kernels.scatter_edges(sources, targets, symmetric, self_loops, low, high, cursor, entries)
            cuts = np.searchsorted(starts, np.linspace(0, starts[-1], 8 * workers + 1)[1:-1]).clip(
                0, high - low
            )
            bounds = [0, *cuts.tolist(), high - low]
            jobs = [
                pool.submit(kernels.sort_rows, starts, a, b, entries, counts[low:high])
                for a, b in itertools.pairwise(bounds)
            ]
            for job in jobs:
                job.result()
            emit(entries[: kernels.compact_rows(starts, counts[low:high], entries)])
    indptr = np.zeros(num_vertices + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    return indptr


def iter_ranges(upper: NDArray[np.int64], range_entries: int) -> Iterator[tuple[int, int]]:
    """Yield ranges (low, high) of at least one row and about `range_entries` entries of an indptr."""
    low, last = 0, len(upper) - 1
    while low < last:
        high = int(np.searchsorted(upper, upper[low] + range_entries, side="right")) - 1
        high = min(max(high, low + 1), last)
        yield low, high
        low = high


def iter_row_ranges(
    indptr: NDArray[np.int64], indices: Array, range_entries: int
) -> Iterator[tuple[NDArray[np.int64], Array, int]]:
    """Yield ranges of rows with about `range_entries` entries as (indptr, entries, first vertex)."""
    for low, high in iter_ranges(indptr, range_entries):
        starts = indptr[low : high + 1]
        yield starts, indices[starts[0] : starts[-1]], low


def drop_edges(
    indptr: NDArray[np.int64], indices: Array, excess: int, key: int, emit: Callable[[Array], None]
) -> NDArray[np.int64]:
    """Remove the `excess` undirected edges that have the lowest hashes under `key` from a symmetric CSR
    without self-loops.

    `emit` is called with the remaining indices of consecutive ranges of rows. Returns the new indptr [V+1].
    """
    total = int(indptr[-1]) // 2
    bound = _rank_of(indptr, indices, excess, total, key)
    counts = np.empty(len(indptr) - 1, np.int64)
    for rows in iter_row_ranges(indptr, indices, _RANGE):
        starts, entries, first = rows
        buffer = np.empty_like(entries)
        part = counts[first : first + len(starts) - 1]
        emit(buffer[: kernels.drop_low_ranks(*rows, np.uint64(key), bound, buffer, part)])
    remaining = np.zeros_like(indptr)
    np.cumsum(counts, out=remaining[1:])
    return remaining


def _rank_of(indptr: NDArray[np.int64], indices: Array, excess: int, total: int, key: int) -> np.uint64:
    """Return the hash bound that is greater than the hashes of exactly `excess` undirected edges."""
    if excess == 0:
        return np.uint64(0)
    share = excess / total
    while True:
        share = min(1.0, share * 1.05 + 64 / total)
        bound = np.uint64(min(int(share * 2.0**64), 2**64 - 1))
        ranks = np.empty(min(total, int(share * total * 1.2) + 1024), np.uint64)
        found = 0
        for rows in iter_row_ranges(indptr, indices, _RANGE):
            found += kernels.collect_edge_ranks(*rows, np.uint64(key), bound, ranks[found:])
        if excess < found <= len(ranks):
            return np.uint64(np.partition(ranks[:found], excess)[excess])
