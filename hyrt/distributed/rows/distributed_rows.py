"""Dense feature rows of which each rank has a part: what a step needs of others is exchanged once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.rows import fetched_kernels
from hyrt.distributed.rows.remote_rows import CacheCounts, RemoteRows
from hyrt.distributed.rows.remote_vertices import CACHE, RemoteVertices, WantedRows
from hyrt.distributed.rows.wire import wire_of
from hyrt.graph.row_source import DenseFeatures
from hyrt.machine.buffer_pool import BufferPool, TakenArrays
from hyrt.machine.workers import Workers
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.operators.aggregate import check_weights, scales
from hyrt.sampling.block import Block

_GRAIN = 512


class DistributedRows:
    """Gives all rows that were fetched for a step; the own ones from here, the others from their ranks.

    `fetch`, `rows` and `aggregate` are called by one thread. Every rank fetches the same steps in the same
    order, also those for which it needs nothing, because others may need its rows.

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
        self._wire = wire_of(wire, local.value_bytes)
        self._vertices = RemoteVertices(homes, places, group, purpose)
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
        taken = TakenArrays(self._pool)
        addresses, matrices = self._addresses(ids, taken, workers), self._matrices()
        workers.run_rows(
            lambda start, stop: fetched_kernels.gather(addresses, *matrices, out, start, stop),
            len(ids),
            _GRAIN,
        )
        taken.give_back()

    def aggregate(
        self, aggregation: Aggregation, block: Block, out: NDArray[np.float32], workers: Workers
    ) -> None:
        """As `hyrt.pipeline.trainer.AggregatedRows.aggregate`."""
        check_weights(aggregation, block)
        taken = TakenArrays(self._pool)
        of_edges, of_own = self._addresses(block.columns, taken, workers), None
        if aggregation.self_path != "none":
            of_own = self._addresses(block.destinations, taken, workers)
        matrices, at = self._matrices(), aggregation.columns(self.width)
        if aggregation.reduce == "max":

            def work(start: int, stop: int) -> None:
                fetched_kernels.aggregate_max(
                    block.indptr, block.columns, of_edges, of_own, *matrices, out, *at, start, stop
                )

        else:
            s = scales(aggregation, block, out.dtype)
            factors = (s.row, s.source, s.edge, s.own)

            def work(start: int, stop: int) -> None:
                fetched_kernels.aggregate(
                    block.indptr, block.columns, of_edges, of_own, *matrices, *factors, out, *at, start, stop
                )

        workers.run_rows(work, block.num_dst, _GRAIN)
        taken.give_back()

    def _addresses(self, ids: NDArray[Any], taken: TakenArrays, workers: Workers) -> NDArray[Any]:
        """Where the rows of some vertices are."""
        addresses = self._vertices.addresses
        out = taken.take(len(ids), addresses.table.dtype)
        addresses.of(ids, out, workers)
        return out

    def _matrices(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Own rows, fetched ones and cached ones, as compiled loops read them."""
        none = np.empty((0, self.width), self._wire.dtype)
        fetched, cached = (
            self._wire.bits(none if rows is None else rows)
            for rows in (self._remote.fetched, self._remote.cached)
        )
        return self._local.matrix, fetched, cached

    def _brought(self, asked: WantedRows, workers: Workers) -> NDArray[Any]:
        """The rows that were wanted here, as they travelled, in memory of the pool unless they are cached."""
        given = self._pool.take((len(asked.given), self.width), np.float32)
        places = TakenArrays(self._pool)
        self._local.rows(self._addresses(asked.given, places, workers), given, workers)
        places.give_back()
        # The pool's memory is larger than what is asked of it.
        room = np.empty if asked.purpose == CACHE else self._pool.take
        taken = room((len(asked.wanted), self.width), self._wire.dtype)
        self._vertices.exchange(asked, self._wire.packed(given), taken)
        self._pool.give(given)
        return taken
