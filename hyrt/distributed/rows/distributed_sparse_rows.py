"""Sparse feature rows of which each rank has a part; they travel as sparse rows."""

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

_GRAIN = 512
# Of a cached row: its offset, and a column and a value an entry.
_OFFSET_BYTES, _ENTRY_BYTES = 8, 8


class DistributedSparseRows:
    """As `hyrt.distributed.rows.distributed_rows.DistributedRows`, of sparse rows.

    Parameters
    ----------
    local
        [n, F] the rows of this rank's vertices.
    places
        [V] integers, the row of each vertex among those of its rank.
    homes
        [V] the rank that has each vertex's rows.
    group
        The ranks.
    purpose
        The purpose of the rows, in the counts of bytes.
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
        self._remote = RemoteRows(self._vertices, self._brought)

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
        """The first ones of some vertices of other ranks, as many as have rows of so many bytes in the cache;
        every rank calls it at once, to ask for the lengths of rows.
        """
        asked = self._vertices.ask_to_cache(vertices[: num_bytes // _OFFSET_BYTES])
        lengths = np.empty(len(asked.wanted), np.int64)
        self._vertices.exchange(asked, self._lengths(asked.given), lengths)
        of_vertices = np.zeros(len(self._vertices.addresses.table), np.int64)
        of_vertices[asked.wanted] = _OFFSET_BYTES + _ENTRY_BYTES * lengths
        sums = np.cumsum(of_vertices[vertices[: len(asked.wanted)]])
        return vertices[: np.searchsorted(sums, num_bytes - _OFFSET_BYTES, side="right")]

    def cache(self, vertices: NDArray[Any], workers: Workers) -> None:
        """As `hyrt.distributed.rows.remote_rows.RemoteRows.cache`."""
        self._remote.cache(vertices, workers)

    def cache_counts(self) -> CacheCounts:
        """What the cache holds, and what it was good for so far."""
        return self._remote.cache_counts()

    def take(self, ids: NDArray[Any], workers: Workers) -> SparseFeatures:
        sources = self._sources(ids, workers)
        lengths = np.empty(len(ids), np.int64)
        for rows, slots, at in sources:
            lengths[at] = rows.indptr[slots + 1] - rows.indptr[slots]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        taken = SparseFeatures(
            indptr, np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32), self.width
        )
        for rows, slots, at in sources:
            _place(rows, slots, at, taken, workers)
        return taken

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        taken = self.take(ids, workers)
        workers.run(
            lambda start, stop: densify(taken.indptr, taken.columns, taken.values, out, start, stop),
            len(ids),
            _GRAIN,
        )

    def _sources(
        self, ids: NDArray[Any], workers: Workers
    ) -> list[tuple[SparseFeatures, NDArray[Any], NDArray[np.intp]]]:
        """The rows that hold those of some vertices, which of them, and the places of the vertices."""
        addresses = self._vertices.addresses
        at = np.empty(len(ids), addresses.table.dtype)
        addresses.of(ids, at, workers)
        sides = (self._local, self._remote.fetched, self._remote.cached)
        found = zip(sides, sorted_out(at), strict=True)
        return [(rows, slots, places) for rows, (slots, places) in found if rows is not None and len(places)]

    def _lengths(self, vertices: NDArray[Any]) -> NDArray[np.int64]:
        """[n] how many entries the rows of own vertices have."""
        at = self._vertices.addresses.table[vertices]
        lengths: NDArray[np.int64] = self._local.indptr[at + 1] - self._local.indptr[at]
        return lengths

    def _brought(self, asked: WantedRows, workers: Workers) -> SparseFeatures:
        """The rows that were wanted here."""
        given = self._local.take(self._vertices.addresses.table[asked.given], workers)
        given_lengths = np.diff(given.indptr)
        lengths = np.empty(len(asked.wanted), np.int64)
        self._vertices.exchange(asked, given_lengths, lengths)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        columns, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
        given_entries = _sums(given_lengths, asked.given_counts)
        entries = _sums(lengths, asked.wanted_counts)
        for mine, theirs in ((given.columns, columns), (given.values, values)):
            self._vertices.exchange_counted(mine, given_entries, theirs, entries, asked.purpose)
        return SparseFeatures(indptr, columns, values, self.width)


def _sums(lengths: NDArray[np.int64], counts: Sequence[int]) -> list[int]:
    """The sums of consecutive groups of so many lengths."""
    ends = np.cumsum(counts)
    totals = np.concatenate([[0], np.cumsum(lengths)])[ends]
    sums: list[int] = np.diff(totals, prepend=0).tolist()
    return sums


def _place(
    rows: SparseFeatures,
    slots: NDArray[Any],
    places: NDArray[np.intp],
    taken: SparseFeatures,
    workers: Workers,
) -> None:
    """Copy some of the rows to their places in others."""
    starts = taken.indptr[places]
    workers.run(
        lambda start, stop: gather_sparse_rows(
            rows.indptr,
            rows.columns,
            rows.values,
            slots,
            starts,
            taken.columns,
            taken.values,
            start,
            stop,
        ),
        len(slots),
        _GRAIN,
    )
