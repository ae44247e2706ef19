"""The load stage: input features of a mini-batch, in the form its trainer takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from hyrt.graph.cached.cached_rows import CachedRows
from hyrt.graph.cached.row_places import RowPlaces
from hyrt.graph.narrow.narrow_rows import NarrowRows
from hyrt.graph.row_source import FetchedRows, NarrowSource, RowSource, SparseFeatures, SparseSource
from hyrt.graph.typed.typed_rows import TypedRows
from hyrt.machine.buffer_pool import BufferPool
from hyrt.machine.workers import Workers
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.inputs import Aggregated, InPlace
from hyrt.nn.operators.aggregate import aggregate_into
from hyrt.nn.operators.narrow.aggregate_narrow import aggregate_narrow_into
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.typed.type_order import order_by_type
from hyrt.nn.typed.typed_input import TypedInPlace, TypedInput, with_sources
from hyrt.pipeline.schedule import Schedule
from hyrt.pipeline.shares import ALL, Share, StepPart
from hyrt.pipeline.trainer import AggregatedRows, InputPlan, Trainer
from hyrt.sampling.block import Block
from hyrt.sampling.full.whole_graph import WholeGraph
from hyrt.sampling.minibatch import MiniBatch

Take = Callable[[tuple[int, ...]], NDArray[Any]]
"""Gives memory for a float32 matrix."""


@runtime_checkable
class InputSource(FetchedRows, Protocol):
    """Fetched rows that come in a form of their own."""

    def inputs(self, batch: MiniBatch, workers: Workers) -> Any:
        """The inputs of a mini-batch whose step has been fetched; its device is a CPU."""
        ...


class Loader:
    """Fills `MiniBatch.inputs` with the feature rows of its input vertices, in pooled buffers.

    Parameters
    ----------
    source
        The source of the feature rows.
    """

    def __init__(self, source: RowSource) -> None:
        self._source = source
        self.fetched = source if isinstance(source, FetchedRows) else None
        """The source, where it brings the rows of a step at once."""
        # Looked up once: asking whether an object follows a protocol takes longer than loading a few rows.
        self._input_source = source if isinstance(source, InputSource) else None
        self._narrow_source = source if isinstance(source, NarrowSource) else None
        self._aggregated_source = source if isinstance(source, AggregatedRows) else None
        self._pool = BufferPool()
        # The inputs of the whole graph, which stay the same from step to step.
        self._whole: tuple[WholeGraph, InputPlan, Any] | None = None

    def load(self, batch: MiniBatch, plan: InputPlan, workers: Workers) -> None:
        """Load one mini-batch.

        Parameters
        ----------
        batch
            The mini-batch, sampled with `in_place=plan.in_place`.
        plan
            The form its trainer takes.
        workers
            The threads that share the work.
        """
        block, source = batch.blocks[0], self._source
        if plan.form == "ids":
            return
        if self._input_source is not None:
            batch.inputs = self._input_source.inputs(batch, workers)
            return
        if batch.whole is not None:
            batch.inputs = self._inputs_of_whole(batch, batch.whole, plan, workers)
            return
        if plan.leaves_tables:
            batch.inputs = self._typed_in_place(block, partial(self._take, batch), workers)
            return
        if plan.form == "typed":
            assert block.sources is not None
            batch.inputs = self._typed(block.sources, partial(self._take, batch), workers)
            return
        if plan.aggregation is not None:
            out = self._take(batch, (block.num_dst, plan.aggregation.width(source.width)))
            self._aggregate(plan.aggregation, block, out, workers)
            batch.inputs = Aggregated(torch.from_numpy(out))
            return
        if plan.in_place:
            assert source.matrix is not None
            batch.inputs = InPlace(source.matrix)
            return
        assert block.sources is not None
        if plan.form == "sparse":
            assert isinstance(source, SparseSource)
            batch.inputs = SparseRows.of(source.take(block.sources, workers))
        elif plan.form == "narrow":
            batch.inputs = self._narrow(batch, block.sources, workers)
        elif plan.places is not None:
            batch.inputs = self._cached(batch, block.sources, plan, plan.places, workers)
        else:
            batch.inputs = torch.from_numpy(self._wide(batch, block.sources, workers))

    def typed_rows(self, ids: NDArray[Any], workers: Workers) -> TypedInput:
        """The rows of some vertices of a typed graph, in memory of their own."""
        return self._typed(ids, lambda shape: np.empty(shape, np.float32), workers)

    def _typed(self, ids: NDArray[Any], take: Take, workers: Workers) -> TypedInput:
        """The rows of each type, in a matrix of the type's own width."""
        source = self._source
        assert isinstance(source, TypedRows)
        starts = source.types.starts
        order = order_by_type(starts, ids)
        matrices: list[torch.Tensor | None] = []
        tables: list[NDArray[Any] | None] = []
        for number, table in enumerate(source.tables):
            rows = ids[order.of(number)] - ids.dtype.type(starts[number])
            if table is None:
                matrices.append(None)
                tables.append(rows)
                continue
            out = take((len(rows), table.width))
            table.rows(rows, out, workers)
            matrices.append(torch.from_numpy(out))
            tables.append(None)
        return TypedInput(order, matrices, tables)

    def _typed_in_place(self, block: Block, take: Take, workers: Workers) -> TypedInPlace:
        """The tables themselves, beside the rows that are read once: the destinations' own."""
        source = self._source
        assert isinstance(source, TypedRows)
        starts, ids = source.types.starts, block.destinations
        order = order_by_type(starts, ids)
        matrices: list[NDArray[Any] | None] = []
        own: list[torch.Tensor | None] = []
        tables: list[NDArray[Any] | None] = []
        for number, table in enumerate(source.tables):
            rows = ids[order.of(number)] - ids.dtype.type(starts[number])
            if table is None:
                matrices.append(None)
                own.append(None)
                tables.append(with_sources(rows, block.columns, int(starts[number]), int(starts[number + 1])))
                continue
            out = take((len(rows), table.width))
            table.rows(rows, out, workers)
            matrices.append(table.matrix)
            own.append(torch.from_numpy(out))
            tables.append(None)
        return TypedInPlace(order, starts, matrices, own, tables)

    def _wide(self, batch: MiniBatch, ids: NDArray[Any], workers: Workers) -> NDArray[np.float32]:
        out = self._take(batch, (len(ids), self._source.width))
        self._source.rows(ids, out, workers)
        return out

    def _narrow(self, batch: MiniBatch, ids: NDArray[Any], workers: Workers) -> NarrowRows:
        source = self._narrow_source
        assert source is not None
        shape = (len(ids), source.width)
        rows = NarrowRows.room(source.row_format, shape, source.column_scales, partial(self._take, batch))
        source.narrow_rows(ids, rows, workers)
        return rows

    def _cached(
        self, batch: MiniBatch, ids: NDArray[Any], plan: InputPlan, places: RowPlaces, workers: Workers
    ) -> CachedRows:
        """What a device that keeps some rows is sent."""
        found = self._take(batch, (len(ids),), np.int32)
        missing = self._take(batch, (len(ids),), ids.dtype)
        missing = missing[: places.find(ids, found, missing)]
        rows = self._narrow if plan.sends_narrow else self._wide
        return CachedRows(found, rows(batch, missing, workers))

    def _inputs_of_whole(self, batch: MiniBatch, whole: WholeGraph, plan: InputPlan, workers: Workers) -> Any:
        """The inputs of all vertices, made at the first call; the graph's own arrays wherever they do."""
        kept = self._whole
        if kept is None or kept[0] is not whole or kept[1] != plan:
            kept = self._whole = (whole, plan, self._made_of_whole(batch, plan, workers))
        return kept[2]

    def _made_of_whole(self, batch: MiniBatch, plan: InputPlan, workers: Workers) -> Any:
        if plan.form == "typed":
            assert batch.blocks[0].sources is not None
            return self.typed_rows(batch.blocks[0].sources, workers)
        source, matrix, num = self._source, self._source.matrix, batch.blocks[0].num_src
        if plan.form == "sparse":
            assert isinstance(source, SparseFeatures)
            return SparseRows.of(source)
        if plan.form == "in_place":
            assert matrix is not None
            return InPlace(matrix)
        if plan.aggregation is not None:
            out = np.empty((num, plan.aggregation.width(source.width)), np.float32)
            self._aggregate(plan.aggregation, batch.blocks[0], out, workers)
            return Aggregated(torch.from_numpy(out))
        if matrix is not None and matrix.dtype == np.float32 and matrix.flags.writeable:
            return torch.from_numpy(matrix)
        out = np.empty((num, source.width), np.float32)
        assert batch.blocks[0].sources is not None
        source.rows(batch.blocks[0].sources, out, workers)
        return torch.from_numpy(out)

    def _aggregate(
        self, aggregation: Aggregation, block: Block, out: NDArray[np.float32], workers: Workers
    ) -> None:
        source, narrow = self._source, self._narrow_source
        if self._aggregated_source is not None:
            self._aggregated_source.aggregate(aggregation, block, out, workers)
            return
        if narrow is not None and narrow.all_rows is not None:
            aggregate_narrow_into(aggregation, block, narrow.all_rows, out, workers)
            return
        assert source.matrix is not None
        aggregate_into(aggregation, block, source.matrix, out, workers=workers)

    def _take(self, batch: MiniBatch, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
        out = self._pool.take(shape, dtype)
        batch.when_released(lambda: self._pool.give(out))
        return out


@dataclass(frozen=True, slots=True)
class LoadStage:
    """Loads the shares of trainers, in the forms that their plans say."""

    loader: Loader
    trainers: Sequence[Trainer]
    schedule: Schedule
    workers: Workers
    part: StepPart = ALL

    def together(self, shares: Iterable[Share]) -> Iterator[list[Share]]:
        """Shares in the groups that are loaded together: one by one, or all of a step, or of one of its time
        steps, where their rows are fetched at once.
        """
        waiting: list[Share] = []
        for share in shares:
            waiting.append(share)
            times = 1 if self.part.fetches_each_time else share.work.num_times
            if self.loader.fetched is None or share.is_again or len(waiting) == len(self.trainers) * times:
                yield waiting
                waiting = []

    def fetch(self, shares: Sequence[Share]) -> None:
        """Bring the rows of shares here, if that has to be done, or turn to those of one that is done again.

        `shares` are those of a step or a time step, as `together` gives them.
        """
        source, step = self.loader.fetched, shares[0].work.step
        if source is None:
            return
        self.workers.resize(self.schedule.of(step).threads.load)
        batches = [share.batch for share in shares if share.batch is not None]
        number = step * self.part.most_times + shares[0].time if self.part.fetches_each_time else step
        started = time.perf_counter()
        source.fetch(number, [ids for batch in batches for ids in _read(batch)], self.workers)
        for share in shares:
            # They waited for it together.
            share.seconds["fetch"] = (time.perf_counter() - started) / len(shares)
        if not batches:
            source.release(number)
        elif not shares[0].is_again:
            batches[0].when_released(lambda: source.release(number))

    def end(self) -> None:
        """No more rows are fetched: free a thread that waits for some."""
        if self.loader.fetched is not None:
            self.loader.fetched.end()

    def __call__(self, share: Share) -> None:
        """Fill in the inputs of a share's mini-batch, if it has one."""
        batch, trainer = share.batch, self.trainers[share.trainer]
        if batch is not None:
            self.workers.resize(self.schedule.of(share.work.step).threads.load)
            trainer.work("load", share, lambda: self.loader.load(batch, trainer.plan, self.workers))


def _read(batch: MiniBatch) -> list[NDArray[Any]]:
    """The vertices whose rows a mini-batch reads, some of them several times."""
    block = batch.blocks[0]
    return [block.columns, block.destinations] if block.sources is None else [block.sources]
