"""Sparse feature rows partitioned over the ranks; rows are exchanged in sparse form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.rows.remote_rows import CacheCounts, RemoteRows
from hyrt.distributed.rows.remote_vertices import RemoteVertices, WantedRows
from hyrt.distributed.rows.row_addresses import sorted_out
from hyrt.graph.row_kernels import densify, gather_sparse_rows
from hyrt.graph.row_source import SparseFeatures
from hyrt.machine.workers import Workers

_SPARSE_GRAIN = 512
# Size of a cached row: its offset, plus a column and a value per entry.
_OFFSET_BYTES, _ENTRY_BYTES = 8, 8


class DistributedSparseRows:
    """Sparse counterpart of `hyrt.distributed.rows.distributed_rows.DistributedRows`.

    Parameters
    ----------
    local
        [n, F] rows of this rank's vertices.
    places
        [V] integers, row index of each vertex at its owner rank.
    homes
        [V] owner rank of each vertex.
    group
        The ranks.
    purpose
        Purpose of the rows, for the byte counters.
    """

    def __init__(
        self,
        local: SparseFeatures,
        places: NDArray[Any],
        homes: NDArray[Any],
        group: RankGroup,
        purpose: str = "rows",
    ) -> None:
        self._local = local
        self._vertices = RemoteVertices(homes, places, group, purpose)
        self._remote = RemoteRows(self._vertices, self._exchange_rows)

    @property
    def width(self) -> int:
        return self._local.width

    @property
    def value_bytes(self) -> int:
        return self._local.value_bytes

    @property
    def nbytes(self) -> int:
        return self._local.nbytes + self.cache_counts().num_bytes

    @property
    def matrix(self) -> None:
        return None

    def fetch(self, step: int, ids: Sequence[NDArray[Any]], workers: Workers) -> None:
        self._remote.fetch(step, ids, workers)

    def release(self, step: int) -> None:
        self._remote.release(step)

    def end(self) -> None:
        self._remote.end()

    def fitting(self, vertices: NDArray[Any], num_bytes: int, workers: Workers) -> NDArray[Any]:
        """Return the longest prefix of remote `vertices` whose rows fit into `num_bytes` of cache.

        Every rank must call this method at the same time, because row lengths are exchanged.
        """
        plan = self._vertices.ask_to_cache(vertices[: num_bytes // _OFFSET_BYTES])
        lengths = np.empty(len(plan.wanted), np.int64)
        self._vertices.exchange(plan, self._count_entries(plan.given), lengths)
        sizes = np.zeros(len(self._vertices.addresses.table), np.int64)
        sizes[plan.wanted] = _OFFSET_BYTES + _ENTRY_BYTES * lengths
        sums = np.cumsum(sizes[vertices[: len(plan.wanted)]])
        return vertices[: np.searchsorted(sums, num_bytes - _OFFSET_BYTES, side="right")]

    def cache(self, vertices: NDArray[Any], workers: Workers) -> None:
        """Fill the cache; see `hyrt.distributed.rows.remote_rows.RemoteRows.cache`."""
        self._remote.cache(vertices, workers)

    def cache_counts(self) -> CacheCounts:
        """Return the size and hit counters of the cache."""
        return self._remote.cache_counts()

    def take(self, ids: NDArray[Any], workers: Workers) -> SparseFeatures:
        sources = self._sources(ids, workers)
        lengths = np.empty(len(ids), np.int64)
        for rows, slots, positions in sources:
            lengths[positions] = rows.indptr[slots + 1] - rows.indptr[slots]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        result = SparseFeatures(
            indptr, np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32), self.width
        )
        for rows, slots, positions in sources:
            _copy_rows(rows, slots, positions, result, workers)
        return result

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        sparse = self.take(ids, workers)
        workers.run(
            lambda start, stop: densify(sparse.indptr, sparse.columns, sparse.values, out, start, stop),
            len(ids),
            _SPARSE_GRAIN,
        )

    def _sources(
        self, ids: NDArray[Any], workers: Workers
    ) -> list[tuple[SparseFeatures, NDArray[Any], NDArray[np.intp]]]:
        """Locate rows: list the source matrices with the row indices in each and their positions in `ids`."""
        addresses = self._vertices.addresses
        locations = np.empty(len(ids), addresses.table.dtype)
        addresses.of(ids, locations, workers)
        matrices = (self._local, self._remote.fetched, self._remote.cached)
        groups = zip(matrices, sorted_out(locations), strict=True)
        return [
            (rows, slots, positions)
            for rows, (slots, positions) in groups
            if rows is not None and len(positions)
        ]

    def _count_entries(self, vertices: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of entries in the rows of local vertices, [n]."""
        local_ids = self._vertices.addresses.table[vertices]
        lengths: NDArray[np.int64] = self._local.indptr[local_ids + 1] - self._local.indptr[local_ids]
        return lengths

    def _exchange_rows(self, plan: WantedRows, workers: Workers) -> SparseFeatures:
        """Exchange rows; return the requested rows."""
        sent = self._local.take(self._vertices.addresses.table[plan.given], workers)
        sent_lengths = np.diff(sent.indptr)
        lengths = np.empty(len(plan.wanted), np.int64)
        self._vertices.exchange(plan, sent_lengths, lengths)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        columns, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
        sent_entries = _sum_groups(sent_lengths, plan.given_counts)
        entries = _sum_groups(lengths, plan.wanted_counts)
        for sent_array, received_array in ((sent.columns, columns), (sent.values, values)):
            self._vertices.exchange_counted(sent_array, sent_entries, received_array, entries, plan.purpose)
        return SparseFeatures(indptr, columns, values, self.width)


def _sum_groups(lengths: NDArray[np.int64], counts: Sequence[int]) -> list[int]:
    """Sum consecutive groups of lengths; counts[i] is the size of group i."""
    ends = np.cumsum(counts)
    totals = np.concatenate([[0], np.cumsum(lengths)])[ends]
    sums: list[int] = np.diff(totals, prepend=0).tolist()
    return sums


def _copy_rows(
    rows: SparseFeatures,
    slots: NDArray[Any],
    positions: NDArray[np.intp],
    result: SparseFeatures,
    workers: Workers,
) -> None:
    """Copy rows `slots` of a matrix to the rows `places` of `taken`."""
    starts = result.indptr[positions]
    workers.run(
        lambda start, stop: gather_sparse_rows(
            rows.indptr,
            rows.columns,
            rows.values,
            slots,
            starts,
            result.columns,
            result.values,
            start,
            stop,
        ),
        len(slots),
        _SPARSE_GRAIN,
    )
