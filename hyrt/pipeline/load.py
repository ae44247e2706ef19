"""Load stage, which provides the input features of a mini-batch in the form that its trainer uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from hyrt.graph.feature_cache import CachedRows, CacheIndex
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.graph.row_source import (
    HeteroRows,
    PrefetchedRowSource,
    QuantizedRowSource,
    RowSource,
    SparseFeatures,
    SparseSource,
)
from hyrt.nn.architecture import Aggregation
from hyrt.nn.hetero.inputs import HeteroInPlaceInput, HeteroInput, append_sources
from hyrt.nn.hetero.type_order import order_by_type
from hyrt.nn.layer import AggregatedFeatures, InPlaceFeatures
from hyrt.nn.operators.aggregate import aggregate_into, aggregate_quantized_into
from hyrt.nn.operators.sparse import SparseRows
from hyrt.pipeline.trainer import AggregatedRows, InputPlan, Trainer
from hyrt.pipeline.work_items import ALL, RankSlice, Schedule, WorkShare
from hyrt.runtime.buffer_pool import BufferPool
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import FullGraph, MiniBatch

Take = Callable[[tuple[int, ...]], NDArray[Any]]
"""Function that allocates a float32 matrix of a given shape."""


@runtime_checkable
class InputSource(PrefetchedRowSource, Protocol):
    """Source of fetched rows that provides a model's inputs in a form of its own."""

    def inputs(self, batch: MiniBatch, workers: Workers) -> Any:
        """Return the inputs of a mini-batch whose step has been fetched, for a CPU device."""
        ...


class Loader:
    """Loader of `MiniBatch.inputs`, the feature rows of the input vertices, in pooled buffers."""

    def __init__(self, source: RowSource) -> None:
        self._source = source
        self.fetched = source if isinstance(source, PrefetchedRowSource) else None
        """The source itself if it fetches all rows of a step at once, otherwise None."""
        # Cache the result, because an isinstance check of a protocol takes longer than loading a few rows.
        self._input_source = source if isinstance(source, InputSource) else None
        self._quantized_source = source if isinstance(source, QuantizedRowSource) else None
        self._aggregated_source = source if isinstance(source, AggregatedRows) else None
        self._pool = BufferPool()
        # Inputs of the full graph, which are the same in every step.
        self._whole: tuple[FullGraph, InputPlan, Any] | None = None

    def load(self, batch: MiniBatch, plan: InputPlan, workers: Workers) -> None:
        """Load one mini-batch, sampled with `in_place=plan.in_place`, in the input form of its trainer."""
        block, source = batch.blocks[0], self._source
        if plan.form == "ids":
            return
        if self._input_source is not None:
            batch.inputs = self._input_source.inputs(batch, workers)
            return
        if batch.full_graph is not None:
            batch.inputs = self._inputs_of_whole(batch, batch.full_graph, plan, workers)
            return
        if plan.leaves_tables:
            batch.inputs = self._load_hetero_in_place(block, partial(self._take, batch), workers)
            return
        if plan.form == "hetero":
            assert block.sources is not None
            batch.inputs = self._load_hetero(block.sources, partial(self._take, batch), workers)
            return
        if plan.aggregation is not None:
            out = self._take(batch, (block.num_dst, plan.aggregation.width(source.width)))
            self._aggregate(plan.aggregation, block, out, workers)
            batch.inputs = AggregatedFeatures(torch.from_numpy(out))
            return
        if plan.in_place:
            assert source.matrix is not None
            batch.inputs = InPlaceFeatures(source.matrix)
            return
        assert block.sources is not None
        if plan.form == "sparse":
            assert isinstance(source, SparseSource)
            batch.inputs = SparseRows.from_features(source.take(block.sources, workers))
        elif plan.form == "quantized":
            batch.inputs = self._load_quantized(batch, block.sources, workers)
        elif plan.places is not None:
            batch.inputs = self._cached(batch, block.sources, plan, plan.places, workers)
        else:
            batch.inputs = torch.from_numpy(self._wide(batch, block.sources, workers))

    def hetero_rows(self, ids: NDArray[Any], workers: Workers) -> HeteroInput:
        """Return copies of the rows of some vertices of a heterogeneous graph."""
        return self._load_hetero(ids, lambda shape: np.empty(shape, np.float32), workers)

    def _load_hetero(self, ids: NDArray[Any], take: Take, workers: Workers) -> HeteroInput:
        """Copy the rows of each vertex type into a matrix of that type's width."""
        source = self._source
        assert isinstance(source, HeteroRows)
        starts = source.types.starts
        order = order_by_type(starts, ids)
        matrices: list[torch.Tensor | None] = []
        tables: list[NDArray[Any] | None] = []
        for number, table in enumerate(source.tables):
            rows = ids[order.positions_of_type(number)] - ids.dtype.type(starts[number])
            if table is None:
                matrices.append(None)
                tables.append(rows)
                continue
            out = take((len(rows), table.width))
            table.rows(rows, out, workers)
            matrices.append(torch.from_numpy(out))
            tables.append(None)
        return HeteroInput(order, matrices, tables)

    def _load_hetero_in_place(self, block: Block, take: Take, workers: Workers) -> HeteroInPlaceInput:
        """Return the tables in place, and a copy of the destinations' rows, which are read only once."""
        source = self._source
        assert isinstance(source, HeteroRows)
        starts, ids = source.types.starts, block.destinations
        order = order_by_type(starts, ids)
        matrices: list[NDArray[Any] | None] = []
        destination_rows: list[torch.Tensor | None] = []
        tables: list[NDArray[Any] | None] = []
        for number, table in enumerate(source.tables):
            rows = ids[order.positions_of_type(number)] - ids.dtype.type(starts[number])
            if table is None:
                matrices.append(None)
                destination_rows.append(None)
                tables.append(
                    append_sources(rows, block.columns, int(starts[number]), int(starts[number + 1]))
                )
                continue
            out = take((len(rows), table.width))
            table.rows(rows, out, workers)
            matrices.append(table.matrix)
            destination_rows.append(torch.from_numpy(out))
            tables.append(None)
        return HeteroInPlaceInput(order, starts, matrices, destination_rows, tables)

    def _wide(self, batch: MiniBatch, ids: NDArray[Any], workers: Workers) -> NDArray[np.float32]:
        out = self._take(batch, (len(ids), self._source.width))
        self._source.rows(ids, out, workers)
        return out

    def _load_quantized(self, batch: MiniBatch, ids: NDArray[Any], workers: Workers) -> QuantizedRows:
        source = self._quantized_source
        assert source is not None
        shape = (len(ids), source.width)
        rows = QuantizedRows.allocate(
            source.row_format, shape, source.column_scales, partial(self._take, batch)
        )
        source.quantized_rows(ids, rows, workers)
        return rows

    def _cached(
        self, batch: MiniBatch, ids: NDArray[Any], plan: InputPlan, places: CacheIndex, workers: Workers
    ) -> CachedRows:
        """Return the inputs for a device with a feature cache."""
        found = self._take(batch, (len(ids),), np.int32)
        missing = self._take(batch, (len(ids),), ids.dtype)
        missing = missing[: places.find(ids, found, missing)]
        rows = self._load_quantized if plan.sends_quantized else self._wide
        return CachedRows(found, rows(batch, missing, workers))

    def _inputs_of_whole(self, batch: MiniBatch, whole: FullGraph, plan: InputPlan, workers: Workers) -> Any:
        """Return the inputs of all vertices, created in the first call, without a copy if possible."""
        cached = self._whole
        if cached is None or cached[0] is not whole or cached[1] != plan:
            cached = self._whole = (whole, plan, self._made_of_whole(batch, plan, workers))
        return cached[2]

    def _made_of_whole(self, batch: MiniBatch, plan: InputPlan, workers: Workers) -> Any:
        if plan.form == "hetero":
            assert batch.blocks[0].sources is not None
            return self.hetero_rows(batch.blocks[0].sources, workers)
        source, matrix, num = self._source, self._source.matrix, batch.blocks[0].num_src
        if plan.form == "sparse":
            assert isinstance(source, SparseFeatures)
            return SparseRows.from_features(source)
        if plan.form == "in_place":
            assert matrix is not None
            return InPlaceFeatures(matrix)
        if plan.aggregation is not None:
            out = np.empty((num, plan.aggregation.width(source.width)), np.float32)
            self._aggregate(plan.aggregation, batch.blocks[0], out, workers)
            return AggregatedFeatures(torch.from_numpy(out))
        if matrix is not None and matrix.dtype == np.float32 and matrix.flags.writeable:
            return torch.from_numpy(matrix)
        out = np.empty((num, source.width), np.float32)
        assert batch.blocks[0].sources is not None
        source.rows(batch.blocks[0].sources, out, workers)
        return torch.from_numpy(out)

    def _aggregate(
        self, aggregation: Aggregation, block: Block, out: NDArray[np.float32], workers: Workers
    ) -> None:
        source, quantized = self._source, self._quantized_source
        if self._aggregated_source is not None:
            self._aggregated_source.aggregate(aggregation, block, out, workers)
            return
        if quantized is not None and quantized.all_rows is not None:
            aggregate_quantized_into(aggregation, block, quantized.all_rows, out, workers)
            return
        assert source.matrix is not None
        aggregate_into(aggregation, block, source.matrix, out, workers=workers)

    def _take(self, batch: MiniBatch, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        out = self._pool.take(shape, dtype)
        batch.on_release(lambda: self._pool.release(out))
        return out


@dataclass(frozen=True, slots=True)
class LoadStage:
    """Load stage, which loads each share's inputs in the form that its trainer's plan requires."""

    loader: Loader
    trainers: Sequence[Trainer]
    schedule: Schedule
    workers: Workers
    part: RankSlice = ALL

    def group_shares(self, shares: Iterable[WorkShare]) -> Iterator[list[WorkShare]]:
        """Yield groups of shares that are loaded together.

        A group is a single share or, if rows are fetched in bulk, all shares of a step or time step.
        """
        waiting: list[WorkShare] = []
        for share in shares:
            waiting.append(share)
            times = 1 if self.part.fetches_each_time else share.work.num_times
            if self.loader.fetched is None or share.is_retry or len(waiting) == len(self.trainers) * times:
                yield waiting
                waiting = []

    def fetch(self, shares: Sequence[WorkShare]) -> None:
        """Fetch the remote rows of a group, or select the fetched rows for a retried share."""
        source, step = self.loader.fetched, shares[0].work.step
        if source is None:
            return
        self.workers.resize(self.schedule.of(step).threads.load)
        batches = [share.batch for share in shares if share.batch is not None]
        number = step * self.part.max_time_steps + shares[0].time if self.part.fetches_each_time else step
        started = time.perf_counter()
        source.fetch(number, [ids for batch in batches for ids in _read(batch)], self.workers)
        for share in shares:
            # All shares used one fetch, so divide its time among the shares.
            share.seconds["fetch"] = (time.perf_counter() - started) / len(shares)
        if not batches:
            source.release(number)
        elif not shares[0].is_retry:
            batches[0].on_release(lambda: source.release(number))

    def end(self) -> None:
        """Stop fetching rows, and unblock a thread that waits for rows."""
        if self.loader.fetched is not None:
            self.loader.fetched.end()

    def __call__(self, share: WorkShare) -> None:
        """Load the inputs of a share's mini-batch, if it has one."""
        batch, trainer = share.batch, self.trainers[share.trainer]
        if batch is not None:
            self.workers.resize(self.schedule.of(share.work.step).threads.load)
            trainer.work("load", share, lambda: self.loader.load(batch, trainer.plan, self.workers))


def _read(batch: MiniBatch) -> list[NDArray[Any]]:
    """Return the vertices whose rows a mini-batch reads, possibly with duplicates."""
    block = batch.blocks[0]
    return [block.columns, block.destinations] if block.sources is None else [block.sources]
