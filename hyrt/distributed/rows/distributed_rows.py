"""Dense feature rows of which each rank has a part: what a step needs of others is exchanged once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.rows.remote_rows import CacheCounts, RemoteRows
from hyrt.distributed.rows.remote_vertices import CACHE, RemoteVertices, WantedRows
from hyrt.distributed.rows.wire import wire_of
from hyrt.graph.row_kernels import place_rows
from hyrt.graph.row_source import DenseFeatures
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
    wire
        The type of the values that travel: `float32`, `float16` or `bfloat16`.
    purpose
        The purpose of the rows, in the counts of bytes.
    """

    def __init__(
        self,
        local: DenseFeatures,
        places: NDArray[Any],
        homes: NDArray[Any],
        group: RankGroup,
        wire: str = "float32",
        purpose: str = "rows",
    ) -> None:
        self._local = local
        self._places = places
        self._wire = wire_of(wire, local.value_bytes)
        self._vertices = RemoteVertices(homes, group, purpose)
        self._pool = BufferPool()
        self._remote = RemoteRows(self._vertices, self._brought, self._pool.give)

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
        """The first ones of some vertices, as many as have rows of so many bytes in the cache."""
        return vertices[: num_bytes // max(1, self.width * self._wire.dtype.itemsize)]

    def cache(self, vertices: NDArray[Any], workers: Workers) -> None:
        """As `hyrt.distributed.rows.remote_rows.RemoteRows.cache`."""
        self._remote.cache(vertices, workers)

    def cache_counts(self) -> CacheCounts:
        """What the cache holds, and what it was good for so far."""
        return self._remote.cache_counts()

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        own, remote = self._remote.find(ids)
        places = self._places[ids[own]]
        matrix = self._local.matrix
        workers.run(lambda start, stop: place_rows(matrix, places, own, out, start, stop), len(own), _GRAIN)
        for kept, slots, at in remote:
            self._wire.place(kept, slots, at, out, workers)

    def _brought(self, asked: WantedRows, workers: Workers) -> NDArray[Any]:
        """The rows that were wanted here, as they travelled, in memory of the pool unless they are cached."""
        given = self._pool.take((len(asked.given), self.width), np.float32)
        self._local.rows(self._places[asked.given], given, workers)
        # The pool's memory is larger than what is asked of it.
        room = np.empty if asked.purpose == CACHE else self._pool.take
        taken = room((len(asked.wanted), self.width), self._wire.dtype)
        self._vertices.exchange(asked, self._wire.packed(given), taken)
        self._pool.give(given)
        return taken
