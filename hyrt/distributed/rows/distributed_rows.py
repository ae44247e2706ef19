"""Dense feature rows of which each rank has a part: what a step needs of other machines is exchanged once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.rows import fetched_kernels
from hyrt.distributed.rows.remote_rows import CacheCounts, RemoteRows
from hyrt.distributed.rows.remote_vertices import CACHE, RemoteVertices, WantedRows
from hyrt.distributed.rows.row_addresses import RowMatrices
from hyrt.distributed.rows.wire import wire_of
from hyrt.graph.row_source import DenseFeatures
from hyrt.machine.buffer_pool import BufferPool, TakenArrays
from hyrt.machine.workers import Workers
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.operators.aggregate import check_weights, scales
from hyrt.sampling.block import Block

_GRAIN = 512


class DistributedRows:
    """Gives all rows that were fetched for a step: those that are here from where they lie, the others from
    their ranks.

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
    beside
        The rows of other ranks that are in this machine's memory, by their numbers. Nothing is exchanged
        where each rank has those of all others.
    """

    def __init__(
        self,
        local: DenseFeatures,
        places: NDArray[Any],
        homes: NDArray[Any],
        group: RankGroup,
        wire: str = "float32",
        purpose: str = "rows",
        beside: Mapping[int, DenseFeatures] | None = None,
    ) -> None:
        self._local = local
        others = {} if beside is None else dict(beside)
        # Kept for as long as compiled loops read them by their addresses.
        self._here = [local.matrix, *(rows.matrix for rows in others.values())]
        self._where = np.array([matrix.ctypes.data for matrix in self._here], np.int64)
        self._is_all_here = len(self._here) == group.size
        self._wire = wire_of(wire, local.value_bytes)
        # A matrix of each dtype that values have, as compiled loops take them.
        own, other = self._here[0], self._wire.bits(np.empty((0, local.width), self._wire.dtype))
        self._kinds = own, None if own.dtype == other.dtype else other
        self._vertices = RemoteVertices(homes, places, group, purpose, list(others))
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
        if not self._is_all_here:
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
        rows, kinds = self._in_memory(ids, taken, workers), self._kinds
        workers.run_rows(
            lambda start, stop: fetched_kernels.gather(rows, *kinds, out, start, stop),
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
        of_edges, of_own = self._in_memory(block.columns, taken, workers), None
        if aggregation.self_path != "none":
            of_own = self._in_memory(block.destinations, taken, workers)
        kinds, at = self._kinds, aggregation.columns(self.width)
        if aggregation.reduce == "max":

            def work(start: int, stop: int) -> None:
                fetched_kernels.aggregate_max(
                    block.indptr, block.columns, of_edges, of_own, *kinds, out, *at, start, stop
                )

        else:
            s = scales(aggregation, block, out.dtype)
            factors = (s.row, s.source, s.edge, s.own)

            def work(start: int, stop: int) -> None:
                fetched_kernels.aggregate(
                    block.indptr, block.columns, of_edges, of_own, *kinds, *factors, out, *at, start, stop
                )

        workers.run_rows(work, block.num_dst, _GRAIN)
        taken.give_back()

    def _in_memory(self, ids: NDArray[Any], taken: TakenArrays, workers: Workers) -> NDArray[np.int64]:
        """Where in memory the rows of some vertices are."""
        out = taken.take(len(ids), np.int64)
        fetched, cached = (
            0 if rows is None else rows.ctypes.data for rows in (self._remote.fetched, self._remote.cached)
        )
        own, other = self._kinds
        sizes = self.width * own.itemsize, self.width * self._wire.dtype.itemsize
        matrices = RowMatrices(self._where, fetched, cached, *sizes, mark=int(other is not None))
        self._vertices.addresses.in_memory(ids, matrices, out, workers)
        return out

    def _brought(self, asked: WantedRows, workers: Workers) -> NDArray[Any]:
        """The rows that were wanted here, as they travelled, in memory of the pool unless they are cached."""
        given = self._pool.take((len(asked.given), self.width), np.float32)
        places = TakenArrays(self._pool)
        addresses = self._vertices.addresses
        own = places.take(len(asked.given), addresses.table.dtype)
        addresses.of(asked.given, own, workers)
        # The matrix of own rows has the number 0.
        own >>= addresses.bits
        self._local.rows(own, given, workers)
        places.give_back()
        # The pool's memory is larger than what is asked of it.
        room = np.empty if asked.purpose == CACHE else self._pool.take
        taken = room((len(asked.wanted), self.width), self._wire.dtype)
        self._vertices.exchange(asked, self._wire.packed(given), taken)
        self._pool.give(given)
        return taken
