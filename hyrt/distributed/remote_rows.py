"""Remote feature rows: locations of all rows, plans for exchanging them, and the rows of steps in flight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed import row_kernels
from hyrt.distributed.process_group import RankGroup
from hyrt.formatting import short_repr
from hyrt.runtime.stage_threads import ChannelClosedError
from hyrt.runtime.workers import Workers

_GRAIN = 1 << 14


class RemoteRowRequest(NamedTuple):
    """Remote rows that a rank needs, as counted by `RowLocations.mark_needed_rows`."""

    missing: NDArray[Any]
    """Distinct vertices whose rows are missing, grouped by owner rank, [m]."""
    counts: list[int]
    """Number of missing rows per owner rank, [N]."""
    num_cached: int
    """Number of remote rows that are needed but cached."""


class RowMatrices(NamedTuple):
    """Memory addresses of the row matrices, which are C-contiguous."""

    local_matrices: NDArray[np.int64]
    """Addresses of the matrices in local or shared memory, this rank's matrix first, [M]."""
    fetched: int
    cached: int
    """Address of the matrix of cached rows, any value if there is none; `fetched` is that of fetched rows."""
    row_bytes: int
    """Bytes per row of the local and shared matrices."""
    transferred_row_bytes: int
    """Bytes per row of the matrices of transferred (fetched or cached) rows."""
    mark: int
    """1 if transferred rows have another dtype than local rows, otherwise 0."""


class RowLocations:
    """Table with one integer per vertex that encodes where its row is stored.

    `hyrt.distributed.row_kernels` explains the encoding. `owners` [V] is the owner rank of each vertex, and
    `local_ids` [V] its row index at the owner. `same_host_ranks` are other ranks on this host, in the order
    of their matrices; their rows are read through shared memory.
    """

    def __init__(
        self,
        owners: NDArray[Any],
        local_ids: NDArray[Any],
        rank: int,
        size: int,
        same_host_ranks: Sequence[int] = (),
    ) -> None:
        same_host = [rank, *same_host_ranks]
        self.bits = (len(same_host) - 1).bit_length()
        """Number of low bits of a location that select one of the local and shared matrices."""
        # Locations of transferred rows need REMOTE_BITS bits besides the row index, other locations `bits`.
        dtype = np.int32 if len(owners) << max(row_kernels.REMOTE_BITS, self.bits) < 2**31 else np.int64
        numbers = np.full(size, row_kernels.MISSING, dtype)
        numbers[same_host] = np.arange(len(same_host))
        table: NDArray[Any] = numbers[owners]
        is_local = table >= 0
        table[is_local] |= np.left_shift(local_ids[is_local], self.bits, dtype=dtype)
        self.table = table
        """Location of each vertex's row, [V]; the object that uses this table holds the matrices."""
        self._owners = owners
        self._size = size
        self._id_dtype = np.int32 if len(owners) < 2**31 else np.int64
        self._fetched = np.empty(0, self._id_dtype)
        self._buffers = np.empty((2, 0), self._id_dtype)

    def mark_needed_rows(self, ids: Sequence[NDArray[Any]]) -> RemoteRowRequest:
        """Return the vertices that are neither local nor cached. Their rows count as fetched from now on.

        The fetched rows must be stored in the order of the returned vertices. The arrays `ids` may have
        duplicates, which count only once, in any order.
        """
        self.set_fetched(self._fetched[:0])
        capacity = min(sum(map(len, ids)), len(self._owners))
        if self._buffers.shape[1] < capacity:
            self._buffers = np.empty((2, capacity + capacity // 8), self._id_dtype)
        missing, cached = self._buffers
        num_missing = num_cached = 0
        for vertices in ids:
            num_missing, num_cached = row_kernels.mark_needed_rows(
                vertices, self.table, missing, num_missing, cached, num_cached
            )
        row_kernels.clear_count_marks(cached[:num_cached], self.table)
        grouped, counts = self.group_by_owner(missing[:num_missing])
        row_kernels.set_locations(grouped, self.table, False)
        self._fetched = grouped
        return RemoteRowRequest(grouped, counts, num_cached)

    def group_by_owner(self, vertices: NDArray[Any]) -> tuple[NDArray[Any], list[int]]:
        """Group vertices by owner rank. Return the grouped vertices, and the number of vertices per rank."""
        grouped, counts = np.empty(len(vertices), self._id_dtype), np.empty(self._size, np.int64)
        row_kernels.group_by_owner(vertices, self._owners, counts, grouped)
        numbers: list[int] = counts.tolist()
        return grouped, numbers

    def set_fetched(self, fetched: NDArray[Any]) -> None:
        """Set the vertices of the fetched rows, in row order. No vertex may be cached."""
        if fetched is not self._fetched:
            row_kernels.clear_locations(self._fetched, self.table)
            row_kernels.set_locations(fetched, self.table, False)
            self._fetched = fetched

    def set_cached(self, cached: NDArray[Any]) -> None:
        """Set the vertices of the cached rows, in row order."""
        row_kernels.set_locations(cached, self.table, True)

    def look_up(self, ids: NDArray[Any], out: NDArray[Any], workers: Workers) -> None:
        """Write the locations of the vertices `ids` [n] to `out` [n], which has the dtype of `table`."""
        workers.run(
            lambda start, stop: row_kernels.look_up(ids, self.table, out, start, stop), len(ids), _GRAIN
        )

    def compute_addresses(
        self, ids: NDArray[Any], matrices: RowMatrices, out: NDArray[np.int64], workers: Workers
    ) -> None:
        """Write the addresses of the rows of the vertices `ids` [n] to `out` [n]. No row may be missing.

        If transferred rows have another dtype than local rows, their addresses are increased by
        `matrices.mark`.
        """
        workers.run(
            lambda start, stop: row_kernels.locate(ids, self.table, self.bits, *matrices, out, start, stop),
            len(ids),
            _GRAIN,
        )


def group_by_matrix(locations: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[np.intp]]]:
    """Group locations [n] by matrix: local, fetched and cached rows. No row may be missing.

    Return the row indices in each matrix, and the positions [m] of their locations in `locations`. Only for
    tables without other ranks on the same host.
    """
    kinds, slots = np.empty(len(locations), np.uint8), np.empty_like(locations)
    row_kernels.decode_locations(locations, kinds, slots)
    groups = []
    for kind in range(3):
        positions = np.flatnonzero(kinds == kind)
        groups.append((slots[positions], positions))
    return groups


CACHE = "cache"
"""Purpose of cached rows in the byte counters."""


@dataclass(frozen=True, slots=True, eq=False)
class FetchPlan:
    """Plan for exchanging rows: the rows requested from each rank, and the rows sent to each rank."""

    requested: NDArray[Any]
    """Distinct remote vertices whose rows this rank needs, grouped by owner rank, [m]."""
    requested_counts: list[int]
    """Number of rows requested from each rank, [N]."""
    sent: NDArray[Any]
    """Local vertices whose rows other ranks need, grouped by requesting rank, [n]."""
    sent_counts: list[int]
    """Number of rows sent to each rank, [N]."""
    purpose: str
    """Purpose of the rows in the byte counters."""

    __repr__ = short_repr


class FetchPlanner:
    """Planner of row exchanges, which plans each exchange together with all other ranks.

    `owners` [V] is the owner rank of each vertex, and `local_ids` [V] its row index at the owner. `purpose`
    is the key of the byte counters; vertex ids are counted as `indices`. Rows of `same_host_ranks` are read
    through shared memory and are never requested.
    """

    def __init__(
        self,
        owners: NDArray[Any],
        local_ids: NDArray[Any],
        group: RankGroup,
        purpose: str,
        same_host_ranks: Sequence[int] = (),
    ) -> None:
        self.hits = 0
        """Number of remote rows that steps needed and found in the cache."""
        self.lookups = 0
        """Number of remote rows that steps needed. A vertex counts once per step."""
        self.group = group
        self.locations = RowLocations(owners, local_ids, group.rank, group.size, same_host_ranks)
        """Location of each vertex's row. Fetched rows belong to the last request."""
        self._purpose = purpose

    def request(self, ids: Sequence[NDArray[Any]]) -> FetchPlan:
        """Plan an exchange for the uncached remote rows of `ids`; all ranks must call this together.

        Each row is requested only once, even if `ids` has duplicates.
        """
        needs = self.locations.mark_needed_rows(ids)
        self.lookups += len(needs.missing) + needs.num_cached
        self.hits += needs.num_cached
        return self._plan(needs.missing, needs.counts, self._purpose)

    def request_for_cache(self, vertices: NDArray[Any]) -> FetchPlan:
        """Plan an exchange for the rows of distinct remote vertices [n], to cache them for the whole run.

        All ranks must call this at the same time, before any step.
        """
        return self._plan(*self.locations.group_by_owner(vertices), CACHE)

    def _plan(self, requested: NDArray[Any], requested_counts: list[int], purpose: str) -> FetchPlan:
        group = self.group
        sent_counts = group.exchange_counts(requested_counts, "indices")
        sent = np.empty(sum(sent_counts), requested.dtype)
        group.all_to_all(
            torch.from_numpy(requested), requested_counts, torch.from_numpy(sent), sent_counts, "indices"
        )
        return FetchPlan(requested, requested_counts, sent, sent_counts, purpose)

    def exchange(self, plan: FetchPlan, sent: NDArray[Any], received: NDArray[Any]) -> None:
        """Send the rows that other ranks requested, and receive the rows that this rank requested.

        `sent` [n, ...] has the rows of `plan.sent`, and `received` [m, ...] is overwritten with the rows of
        `plan.requested`.
        """
        self.exchange_counted(sent, plan.sent_counts, received, plan.requested_counts, plan.purpose)

    def exchange_counted(
        self,
        sent: NDArray[Any],
        send_counts: Sequence[int],
        received: NDArray[Any],
        receive_counts: Sequence[int],
        purpose: str,
    ) -> None:
        """Exchange entries as `exchange` does, with the given number of entries per rank."""
        self.group.all_to_all(
            torch.from_numpy(sent), send_counts, torch.from_numpy(received), receive_counts, purpose
        )


class _HasBytes(Protocol):
    @property
    def nbytes(self) -> int: ...


Rows = TypeVar("Rows", bound=_HasBytes)


class CacheStats(NamedTuple):
    """Size and hit counters of a cache of remote rows."""

    rows: int
    """Number of cached rows."""
    num_bytes: int
    """Size of the cached rows in bytes."""
    hits: int
    """Number of remote rows that steps needed and found in the cache."""
    lookups: int
    """Number of remote rows that steps needed. A vertex counts once per step."""


class RemoteRows(Generic[Rows]):
    """Fetcher of each step's remote rows, which holds them until the step releases them.

    `fetch` is called by the thread that reads the rows. Every rank must fetch the same steps in the same
    order, even if it needs no rows, because other ranks may need its rows. `vertices` plans the exchanges.
    `exchange` exchanges the rows that all ranks have requested, and returns those that this rank requested.
    `release_rows` gets the rows that are no longer needed.
    """

    def __init__(
        self,
        vertices: FetchPlanner,
        exchange: Callable[[FetchPlan, Workers], Rows],
        release_rows: Callable[[Rows], None] = lambda rows: None,
    ) -> None:
        self._vertices = vertices
        self._exchange = exchange
        self._release_rows = release_rows
        self._in_flight: dict[int, tuple[NDArray[Any], Rows]] = {}
        self.fetched: Rows | None = None
        """Rows of the last fetched step, in the order of their locations."""
        self.cached: Rows | None = None
        self._cached_rows = self._cached_bytes = 0

    def fetch(self, step: int, ids: Sequence[NDArray[Any]], workers: Workers) -> None:
        """Fetch the rows of a step; see `hyrt.graph.row_source.PrefetchedRowSource.fetch`."""
        step_rows = self._in_flight.get(step)
        if step_rows is None:
            plan = self._vertices.request(ids)
            step_rows = self._in_flight[step] = (plan.requested, self._exchange(plan, workers))
        requested, self.fetched = step_rows
        self._vertices.locations.set_fetched(requested)

    def release(self, step: int) -> None:
        """Release the rows of a step; see `hyrt.graph.row_source.PrefetchedRowSource.release`."""
        step_rows = self._in_flight.pop(step, None)
        if step_rows is not None:
            self._release_rows(step_rows[1])

    def end(self) -> None:
        """Stop fetching; see `hyrt.graph.row_source.PrefetchedRowSource.end`."""
        self._vertices.group.abort(ChannelClosedError("no more rows are fetched"))

    def cache(self, vertices: NDArray[Any], workers: Workers) -> None:
        """Fetch the rows of distinct remote vertices and cache them for the whole run.

        All ranks must call this at the same time, before the first step.
        """
        plan = self._vertices.request_for_cache(vertices)
        self.cached = self._exchange(plan, workers)
        self._vertices.locations.set_cached(plan.requested)
        self._cached_rows, self._cached_bytes = len(plan.requested), self.cached.nbytes

    def cache_counts(self) -> CacheStats:
        vertices = self._vertices
        return CacheStats(self._cached_rows, self._cached_bytes, vertices.hits, vertices.lookups)
