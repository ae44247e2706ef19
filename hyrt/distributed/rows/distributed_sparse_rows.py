"""Sparse feature rows of which each rank has a part; they travel as sparse rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.rows.remote_vertices import RemoteVertices
from hyrt.flow.channel import ChannelClosed
from hyrt.graph.row_kernels import densify, gather_sparse_rows
from hyrt.graph.row_source import SparseFeatures
from hyrt.machine.workers import Workers

_GRAIN = 512


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
        self._places = places
        self._group = group
        self._remote = RemoteVertices(homes, group, purpose)
        self._kept: dict[int, tuple[NDArray[Any], SparseFeatures]] = {}
        none = np.empty(0, np.int32)
        self._fetched = SparseFeatures(np.zeros(1, np.int64), none, none.astype(np.float32), local.width)

    @property
    def width(self) -> int:
        return self._local.width

    @property
    def value_bytes(self) -> int:
        return self._local.value_bytes

    @property
    def nbytes(self) -> int:
        return self._local.nbytes

    @property
    def matrix(self) -> None:
        return None

    def fetch(self, step: int, ids: Sequence[NDArray[Any]], workers: Workers) -> None:
        kept = self._kept.get(step)
        if kept is None:
            kept = self._kept[step] = self._exchanged(ids, workers)
        wanted, self._fetched = kept
        self._remote.point_at(wanted)

    def release(self, step: int) -> None:
        self._kept.pop(step, None)

    def end(self) -> None:
        self._group.give_up(ChannelClosed("no more rows are fetched"))

    def take(self, ids: NDArray[Any], workers: Workers) -> SparseFeatures:
        own, remote, slots = self._remote.find(ids)
        here = self._local.take(self._places[ids[own]], workers)
        lengths = np.empty(len(ids), np.int64)
        lengths[own] = np.diff(here.indptr)
        lengths[remote] = np.diff(self._fetched.indptr)[slots]
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        taken = SparseFeatures(
            indptr, np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32), self.width
        )
        _place(here, np.arange(len(own), dtype=np.int32), own, taken, workers)
        _place(self._fetched, slots, remote, taken, workers)
        return taken

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        taken = self.take(ids, workers)
        workers.run(
            lambda start, stop: densify(taken.indptr, taken.columns, taken.values, out, start, stop),
            len(ids),
            _GRAIN,
        )

    def _exchanged(
        self, ids: Sequence[NDArray[Any]], workers: Workers
    ) -> tuple[NDArray[Any], SparseFeatures]:
        """The vertices of other ranks, and their rows."""
        rows = self._remote.ask(ids)
        given = self._local.take(self._places[rows.given], workers)
        given_lengths = np.diff(given.indptr)
        lengths = np.empty(len(rows.wanted), np.int64)
        self._remote.exchange(rows, given_lengths, lengths)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        columns, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
        given_entries = _sums(given_lengths, rows.given_counts)
        entries = _sums(lengths, rows.wanted_counts)
        for mine, theirs in ((given.columns, columns), (given.values, values)):
            self._remote.exchange_counted(mine, given_entries, theirs, entries)
        return rows.wanted, SparseFeatures(indptr, columns, values, self.width)


def _sums(lengths: NDArray[np.int64], counts: Sequence[int]) -> list[int]:
    """The sums of consecutive groups of so many lengths."""
    ends = np.cumsum(counts)
    totals = np.concatenate([[0], np.cumsum(lengths)])[ends]
    sums: list[int] = np.diff(totals, prepend=0).tolist()
    return sums


def _place(
    rows: SparseFeatures,
    slots: NDArray[np.int32],
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
