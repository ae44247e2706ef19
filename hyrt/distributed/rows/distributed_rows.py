"""Dense feature rows of which each rank has a part: what a step needs of others is exchanged once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.rows.remote_vertices import RemoteVertices
from hyrt.flow.channel import ChannelClosed
from hyrt.graph.row_kernels import place_rows
from hyrt.graph.row_source import RowSource
from hyrt.machine.buffer_pool import BufferPool
from hyrt.machine.workers import Workers

_GRAIN = 512


class DistributedRows:
    """Gives all rows that were fetched for a step; the own ones from here, the others from their ranks.

    `fetch` and `rows` are called by one thread. Every rank fetches the same steps in the same order, also
    those for which it needs nothing, because others may need its rows.

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
        local: RowSource,
        places: NDArray[Any],
        homes: NDArray[Any],
        group: RankGroup,
        purpose: str = "rows",
    ) -> None:
        self._local = local
        self._places = places
        self._group = group
        self._remote = RemoteVertices(homes, group, purpose)
        self._pool = BufferPool()
        self._kept: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        # Halves that are stored travel as such: nothing is lost.
        self._on_wire = np.dtype(np.float16 if local.value_bytes == 2 else np.float32)
        self._fetched: NDArray[Any] = np.empty((0, local.width), self._on_wire)

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
        kept = self._kept.pop(step, None)
        if kept is not None:
            self._pool.give(kept[1])

    def end(self) -> None:
        self._group.give_up(ChannelClosed("no more rows are fetched"))

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        own, remote, slots = self._remote.find(ids)
        here = self._pool.take((len(own), self.width), np.float32)
        self._local.rows(self._places[ids[own]], here, workers)
        _place(here, np.arange(len(own), dtype=np.int32), own, out, workers)
        self._pool.give(here)
        _place(self._fetched, slots, remote, out, workers)

    def _exchanged(self, ids: Sequence[NDArray[Any]], workers: Workers) -> tuple[NDArray[Any], NDArray[Any]]:
        """The vertices of other ranks, and their rows in memory of the pool."""
        rows = self._remote.ask(ids)
        given = self._pool.take((len(rows.given), self.width), np.float32)
        self._local.rows(self._places[rows.given], given, workers)
        taken = self._pool.take((len(rows.wanted), self.width), self._on_wire)
        self._remote.exchange(rows, given.astype(self._on_wire, copy=False), taken)
        self._pool.give(given)
        return rows.wanted, taken


def _place(
    rows: NDArray[Any],
    slots: NDArray[np.int32],
    places: NDArray[np.intp],
    out: NDArray[np.float32],
    workers: Workers,
) -> None:
    """Write some of the rows, of float32 or float16, to their places."""
    values = rows.view(np.uint16) if rows.dtype == np.float16 else rows
    workers.run(lambda start, stop: place_rows(values, slots, places, out, start, stop), len(slots), _GRAIN)
