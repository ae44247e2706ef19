"""Dense or sparse feature rows that are partitioned over the ranks, and the wire format of dense rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.device import Device
from hyrt.distributed import row_kernels
from hyrt.distributed.process_group import RankGroup
from hyrt.distributed.remote_rows import (
    CACHE,
    CacheStats,
    FetchPlan,
    FetchPlanner,
    RemoteRows,
    RowMatrices,
    group_by_matrix,
)
from hyrt.errors import DataError
from hyrt.graph.row_kernels import densify, gather_sparse_rows
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.nn.architecture import Aggregation
from hyrt.nn.operators.aggregate import check_weights, compute_scales
from hyrt.runtime.buffer_pool import BufferPool, PooledArrays
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.telemetry.events import Notice
from hyrt.telemetry.hooks import Hook

_MAX_FLOAT16 = 65_504


@dataclass(frozen=True, slots=True)
class WireFormat:
    """Data type of transferred values, to which float32 values are rounded."""

    values: torch.dtype
    """torch.float32, torch.float16 or torch.bfloat16."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of numpy arrays of transferred values; float16 holds the bits of bfloat16."""
        return np.dtype(np.float32 if self.values == torch.float32 else np.float16)

    def pack(self, rows: NDArray[np.float32]) -> NDArray[Any]:
        """Convert float32 rows to the wire format, [n, F] of `dtype`.

        Raises DataError if a value exceeds the range of float16.
        """
        if self.values == torch.float32:
            return rows
        rounded = torch.from_numpy(rows).to(self.values)
        if self.values == torch.float16 and bool(rounded.isinf().any()):
            raise DataError(
                f"a feature is {rows[np.isinf(rounded.numpy())][0]:g}, but distributed.comm_dtype=float16 "
                f"can represent at most {_MAX_FLOAT16:,}: set distributed.comm_dtype to bfloat16 or "
                "float32, or scale the features with data.normalize"
            )
        packed: NDArray[Any] = rounded.view(torch.float16).numpy()
        return packed

    def view_bits(self, packed: NDArray[Any]) -> NDArray[Any]:
        """View rows of `dtype` as the integers that compiled loops read (`hyrt.runtime.intrinsics.value`)."""
        if self.values == torch.bfloat16:
            return packed.view(np.int16)
        return packed.view(np.uint16) if packed.dtype == np.float16 else packed


class WireRoundingNotice(Hook):
    """Hook that reports at the start of a run that transferred rows are rounded.

    `name` is the data type of the transferred rows.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def on_start(self, devices: Sequence[Device], steps: range) -> Notice:
        text = f"feature rows sent between ranks are rounded to {self._name}, which changes training slightly"
        return Notice(kind="info", text=text)


def wire_format(name: str, value_bytes: int) -> WireFormat:
    """Return the wire format for the setting `float32`, `float16` or `bfloat16`.

    Features of 16 bits (`value_bytes` is 2) are sent as float16, without rounding.
    """
    if value_bytes == 2:
        return WireFormat(torch.float16)
    wires = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    return WireFormat(wires[name])


_GRAIN = 512


class DistributedRows:
    """Feature rows of all vertices of a step: local rows and rows that were fetched from other ranks.

    One thread calls `fetch`, `rows` and `aggregate`. Every rank must fetch the same steps in the same order,
    even if it needs no rows, because other ranks may need its rows.

    `local` has the rows [n, F] of this rank's vertices, `local_ids` [V] the row index of each vertex at its
    owner, and `owners` [V] the owner ranks. `wire` is `float32`, `float16` or `bfloat16`. `purpose` is the
    key of the byte counters. `same_host_rows` maps other ranks on this host to their rows; if it covers all
    other ranks, rows are never exchanged.
    """

    def __init__(
        self,
        local: DenseFeatures,
        local_ids: NDArray[Any],
        owners: NDArray[Any],
        group: RankGroup,
        wire: str = "float32",
        purpose: str = "rows",
        same_host_rows: Mapping[int, DenseFeatures] | None = None,
    ) -> None:
        self._local = local
        same_host = {} if same_host_rows is None else dict(same_host_rows)
        # Keep the matrices alive: compiled loops access them by address.
        self._matrices = [local.matrix, *(rows.matrix for rows in same_host.values())]
        self._matrix_addresses = np.array([matrix.ctypes.data for matrix in self._matrices], np.int64)
        self._is_all_local = len(self._matrices) == group.size
        self._wire = wire_format(wire, local.value_bytes)
        # Sample matrix of each dtype, from which numba infers the variant of the loops.
        local_sample, wire_sample = (
            self._matrices[0],
            self._wire.view_bits(np.empty((0, local.width), self._wire.dtype)),
        )
        self._samples = local_sample, None if local_sample.dtype == wire_sample.dtype else wire_sample
        self._vertices = FetchPlanner(owners, local_ids, group, purpose, list(same_host))
        self._pool = BufferPool()
        self._remote = RemoteRows(self._vertices, self._exchange_rows, self._pool.release)

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

    def select_fitting(self, vertices: NDArray[Any], num_bytes: int, workers: Workers) -> NDArray[Any]:
        """Return the longest prefix of `vertices` whose rows fit into `num_bytes` of cache."""
        return vertices[: num_bytes // max(1, self.width * self._wire.dtype.itemsize)]

    def cache(self, vertices: NDArray[Any], workers: Workers) -> None:
        """Fill the cache; see `hyrt.distributed.remote_rows.RemoteRows.cache`."""
        self._remote.cache(vertices, workers)

    def cache_counts(self) -> CacheStats:
        return self._remote.cache_counts()

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        buffers = PooledArrays(self._pool)
        rows, samples = self._row_addresses(ids, buffers, workers), self._samples
        workers.run_rows(
            lambda start, stop: row_kernels.gather(rows, *samples, out, start, stop),
            len(ids),
            _GRAIN,
        )
        buffers.release()

    def aggregate(
        self, aggregation: Aggregation, block: Block, out: NDArray[np.float32], workers: Workers
    ) -> None:
        """Aggregate over a block; see `hyrt.pipeline.trainer.AggregatedRows.aggregate`."""
        check_weights(aggregation, block)
        buffers = PooledArrays(self._pool)
        source_rows, self_rows = self._row_addresses(block.columns, buffers, workers), None
        if aggregation.self_path != "none":
            self_rows = self._row_addresses(block.destinations, buffers, workers)
        samples, column_offsets = self._samples, aggregation.columns(self.width)
        if aggregation.reduce == "max":

            def work(start: int, stop: int) -> None:
                row_kernels.aggregate_max(
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
            factors_of = compute_scales(aggregation, block, out.dtype)
            factors = (factors_of.row, factors_of.source, factors_of.edge, factors_of.self_loop)

            def work(start: int, stop: int) -> None:
                row_kernels.aggregate(
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
        buffers.release()

    def _row_addresses(self, ids: NDArray[Any], buffers: PooledArrays, workers: Workers) -> NDArray[np.int64]:
        """Return the memory addresses of the rows of some vertices."""
        out = buffers.take(len(ids), np.int64)
        fetched, cached = (
            0 if rows is None else rows.ctypes.data for rows in (self._remote.fetched, self._remote.cached)
        )
        local, wire = self._samples
        sizes = self.width * local.itemsize, self.width * self._wire.dtype.itemsize
        matrices = RowMatrices(self._matrix_addresses, fetched, cached, *sizes, mark=int(wire is not None))
        self._vertices.locations.compute_addresses(ids, matrices, out, workers)
        return out

    def _exchange_rows(self, plan: FetchPlan, workers: Workers) -> NDArray[Any]:
        """Return the requested rows in wire format. Rows for the cache are not allocated from the pool."""
        sent = self._pool.take((len(plan.sent), self.width), np.float32)
        buffers = PooledArrays(self._pool)
        addresses = self._vertices.locations
        local_ids = buffers.take(len(plan.sent), addresses.table.dtype)
        addresses.look_up(plan.sent, local_ids, workers)
        # This rank's matrix has number 0, so the shift leaves the row index.
        local_ids >>= addresses.bits
        self._local.rows(local_ids, sent, workers)
        buffers.release()
        # A pool buffer is larger than requested, which would waste memory in the cache for the whole run.
        allocate = np.empty if plan.purpose == CACHE else self._pool.take
        received = allocate((len(plan.requested), self.width), self._wire.dtype)
        self._vertices.exchange(plan, self._wire.pack(sent), received)
        self._pool.release(sent)
        return received


_SPARSE_GRAIN = 512
# Size of a cached row in bytes: one offset, plus a column and a value per entry.
_OFFSET_BYTES, _ENTRY_BYTES = 8, 8


class DistributedSparseRows:
    """Sparse counterpart of `DistributedRows`, with the same arguments."""

    def __init__(
        self,
        local: SparseFeatures,
        local_ids: NDArray[Any],
        owners: NDArray[Any],
        group: RankGroup,
        purpose: str = "rows",
    ) -> None:
        self._local = local
        self._vertices = FetchPlanner(owners, local_ids, group, purpose)
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

    def select_fitting(self, vertices: NDArray[Any], num_bytes: int, workers: Workers) -> NDArray[Any]:
        """Return the longest prefix of remote `vertices` whose rows fit into `num_bytes` of cache.

        All ranks must call this at the same time, because row lengths are exchanged.
        """
        plan = self._vertices.request_for_cache(vertices[: num_bytes // _OFFSET_BYTES])
        lengths = np.empty(len(plan.requested), np.int64)
        self._vertices.exchange(plan, self._count_entries(plan.sent), lengths)
        sizes = np.zeros(len(self._vertices.locations.table), np.int64)
        sizes[plan.requested] = _OFFSET_BYTES + _ENTRY_BYTES * lengths
        sums = np.cumsum(sizes[vertices[: len(plan.requested)]])
        return vertices[: np.searchsorted(sums, num_bytes - _OFFSET_BYTES, side="right")]

    def cache(self, vertices: NDArray[Any], workers: Workers) -> None:
        """Fill the cache; see `hyrt.distributed.remote_rows.RemoteRows.cache`."""
        self._remote.cache(vertices, workers)

    def cache_counts(self) -> CacheStats:
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
        """Return the matrices with the rows of `ids`, each with row indices and positions in `ids`."""
        addresses = self._vertices.locations
        locations = np.empty(len(ids), addresses.table.dtype)
        addresses.look_up(ids, locations, workers)
        matrices = (self._local, self._remote.fetched, self._remote.cached)
        groups = zip(matrices, group_by_matrix(locations), strict=True)
        return [
            (rows, slots, positions)
            for rows, (slots, positions) in groups
            if rows is not None and len(positions)
        ]

    def _count_entries(self, vertices: NDArray[Any]) -> NDArray[np.int64]:
        """Return the number of entries in the rows of local vertices, [n]."""
        local_ids = self._vertices.locations.table[vertices]
        lengths: NDArray[np.int64] = self._local.indptr[local_ids + 1] - self._local.indptr[local_ids]
        return lengths

    def _exchange_rows(self, plan: FetchPlan, workers: Workers) -> SparseFeatures:
        sent = self._local.take(self._vertices.locations.table[plan.sent], workers)
        sent_lengths = np.diff(sent.indptr)
        lengths = np.empty(len(plan.requested), np.int64)
        self._vertices.exchange(plan, sent_lengths, lengths)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        columns, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
        sent_entries = _sum_groups(sent_lengths, plan.sent_counts)
        entries = _sum_groups(lengths, plan.requested_counts)
        for sent_array, received_array in ((sent.columns, columns), (sent.values, values)):
            self._vertices.exchange_counted(sent_array, sent_entries, received_array, entries, plan.purpose)
        return SparseFeatures(indptr, columns, values, self.width)


def _sum_groups(lengths: NDArray[np.int64], counts: Sequence[int]) -> list[int]:
    """Return the sum of each group of consecutive lengths; counts[i] is the size of group i."""
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
    """Copy rows `slots` of a matrix to the rows `positions` of `result`."""
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
