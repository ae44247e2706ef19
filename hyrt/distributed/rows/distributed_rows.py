"""Dense feature rows partitioned over the ranks; the remote rows of a step are exchanged once."""

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
    """Feature rows of all vertices that were fetched for a step: local rows and rows from other ranks.

    `fetch`, `rows` and `aggregate` are called by one thread. Every rank must fetch the same steps in the same
    order, even if it needs no rows, because other ranks may need its rows.

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
    wire
        Data type of transferred values: `float32`, `float16` or `bfloat16`.
    purpose
        Purpose of the rows, for the byte counters.
    beside
        Rows of other ranks on this host, by rank. If this covers all ranks, rows are never exchanged.
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
        same_host = {} if beside is None else dict(beside)
        # Keep the matrices alive: compiled loops access them by address.
        self._matrices = [local.matrix, *(rows.matrix for rows in same_host.values())]
        self._matrix_addresses = np.array([matrix.ctypes.data for matrix in self._matrices], np.int64)
        self._is_all_local = len(self._matrices) == group.size
        self._wire = wire_of(wire, local.value_bytes)
        # One sample matrix per dtype, to select the compiled variant of the loops.
        local_sample, wire_sample = (
            self._matrices[0],
            self._wire.bits(np.empty((0, local.width), self._wire.dtype)),
        )
        self._samples = local_sample, None if local_sample.dtype == wire_sample.dtype else wire_sample
        self._vertices = RemoteVertices(homes, places, group, purpose, list(same_host))
        self._pool = BufferPool()
        self._remote = RemoteRows(self._vertices, self._exchange_rows, self._pool.give)

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
        if not self._is_all_local:
            self._remote.fetch(step, ids, workers)

    def release(self, step: int) -> None:
        self._remote.release(step)

    def end(self) -> None:
        self._remote.end()

    def fitting(self, vertices: NDArray[Any], num_bytes: int, workers: Workers) -> NDArray[Any]:
        """Return the longest prefix of `vertices` whose rows fit into `num_bytes` of cache."""
        return vertices[: num_bytes // max(1, self.width * self._wire.dtype.itemsize)]

    def cache(self, vertices: NDArray[Any], workers: Workers) -> None:
        """Fill the cache; see `hyrt.distributed.rows.remote_rows.RemoteRows.cache`."""
        self._remote.cache(vertices, workers)

    def cache_counts(self) -> CacheCounts:
        """Return the size and hit counters of the cache."""
        return self._remote.cache_counts()

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        buffers = TakenArrays(self._pool)
        rows, samples = self._row_addresses(ids, buffers, workers), self._samples
        workers.run_rows(
            lambda start, stop: fetched_kernels.gather(rows, *samples, out, start, stop),
            len(ids),
            _GRAIN,
        )
        buffers.give_back()

    def aggregate(
        self, aggregation: Aggregation, block: Block, out: NDArray[np.float32], workers: Workers
    ) -> None:
        """Aggregate over a block; see `hyrt.pipeline.trainer.AggregatedRows.aggregate`."""
        check_weights(aggregation, block)
        buffers = TakenArrays(self._pool)
        source_rows, self_rows = self._row_addresses(block.columns, buffers, workers), None
        if aggregation.self_path != "none":
            self_rows = self._row_addresses(block.destinations, buffers, workers)
        samples, column_offsets = self._samples, aggregation.columns(self.width)
        if aggregation.reduce == "max":

            def work(start: int, stop: int) -> None:
                fetched_kernels.aggregate_max(
                    block.indptr,
                    block.columns,
                    source_rows,
                    self_rows,
                    *samples,
                    out,
                    *column_offsets,
                    start,
                    stop,
                )

        else:
            factors_of = scales(aggregation, block, out.dtype)
            factors = (factors_of.row, factors_of.source, factors_of.edge, factors_of.own)

            def work(start: int, stop: int) -> None:
                fetched_kernels.aggregate(
                    block.indptr,
                    block.columns,
                    source_rows,
                    self_rows,
                    *samples,
                    *factors,
                    out,
                    *column_offsets,
                    start,
                    stop,
                )

        workers.run_rows(work, block.num_dst, _GRAIN)
        buffers.give_back()

    def _row_addresses(self, ids: NDArray[Any], buffers: TakenArrays, workers: Workers) -> NDArray[np.int64]:
        """Return the memory addresses of the rows of some vertices."""
        out = buffers.take(len(ids), np.int64)
        fetched, cached = (
            0 if rows is None else rows.ctypes.data for rows in (self._remote.fetched, self._remote.cached)
        )
        local, wire = self._samples
        sizes = self.width * local.itemsize, self.width * self._wire.dtype.itemsize
        matrices = RowMatrices(self._matrix_addresses, fetched, cached, *sizes, mark=int(wire is not None))
        self._vertices.addresses.in_memory(ids, matrices, out, workers)
        return out

    def _exchange_rows(self, plan: WantedRows, workers: Workers) -> NDArray[Any]:
        """Exchange rows; return the requested rows in wire format, from the pool unless they are cached."""
        sent = self._pool.take((len(plan.given), self.width), np.float32)
        buffers = TakenArrays(self._pool)
        addresses = self._vertices.addresses
        local_ids = buffers.take(len(plan.given), addresses.table.dtype)
        addresses.of(plan.given, local_ids, workers)
        # This rank's matrix has number 0, so the shift leaves the row index.
        local_ids >>= addresses.bits
        self._local.rows(local_ids, sent, workers)
        buffers.give_back()
        # Cached rows are not pooled: pool buffers are larger than requested.
        allocate = np.empty if plan.purpose == CACHE else self._pool.take
        received = allocate((len(plan.wanted), self.width), self._wire.dtype)
        self._vertices.exchange(plan, self._wire.packed(sent), received)
        self._pool.give(sent)
        return received
