"""The load stage: input features of a mini-batch, in the form its trainer takes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.device import InputForm
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import RowSource, SparseFeatures
from hyrt.machine.buffer_pool import BufferPool
from hyrt.machine.workers import Workers
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.inputs import Aggregated, InPlace, inputs_of
from hyrt.nn.operators.aggregate import aggregate_into
from hyrt.nn.operators.sparse import SparseRows
from hyrt.sampling.block import MiniBatch

if TYPE_CHECKING:
    from hyrt.pipeline.schedule import Schedule
    from hyrt.pipeline.shares import Share
    from hyrt.pipeline.trainer import Trainer


@dataclass(frozen=True, slots=True)
class InputPlan:
    """In which form a trainer gets its input features.

    Parameters
    ----------
    form
        `rows`: the rows of V^0, gathered; `sparse`: the same as sparse rows; `aggregated`: the first layer's
        aggregate, computed while reading the features in place; `in_place`: the whole feature matrix, unmoved; `ids`:
        nothing, the device gathers the rows of V^0 itself.
    aggregation
        What the first layer aggregates, for `aggregated`.
    """

    form: InputForm
    aggregation: Aggregation | None = None

    @property
    def in_place(self) -> bool:
        """Whether the first block's sources stay vertices of the graph."""
        return self.form in ("aggregated", "in_place")


def plan_input(
    model: torch.nn.Module, graph: Graph, forms: Collection[InputForm], *, fuse: bool
) -> InputPlan:
    """Choose the cheapest form that the model and the device can take.

    Parameters
    ----------
    model
        The forms that it takes are those of `inputs_of`.
    graph
        For the kind of its features.
    forms
        What the device takes.
    fuse
        Whether loading and aggregation may be fused.
    """
    takes = inputs_of(model)
    if isinstance(graph.features, SparseFeatures):
        return InputPlan("sparse" if takes.sparse and "sparse" in forms else "rows")
    if fuse:
        if takes.aggregation is not None and "aggregated" in forms:
            return InputPlan("aggregated", takes.aggregation)
        if takes.in_place and "in_place" in forms:
            return InputPlan("in_place")
    return InputPlan("ids" if "ids" in forms else "rows")


class Loader:
    """Fills `MiniBatch.inputs` with the feature rows of its input vertices, in pooled buffers.

    Parameters
    ----------
    source
        Where the rows come from.
    """

    def __init__(self, source: RowSource) -> None:
        self._source = source
        self._pool = BufferPool()

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
        if plan.in_place:
            matrix = source.matrix
            assert matrix is not None
            if plan.aggregation is None:
                batch.inputs = InPlace(matrix)
            else:
                out = self._take(batch, (block.num_dst, plan.aggregation.width(source.width)))
                aggregate_into(plan.aggregation, block, matrix, out, workers=workers)
                batch.inputs = Aggregated(torch.from_numpy(out))
            return
        assert block.sources is not None
        if plan.form == "sparse":
            assert isinstance(source, SparseFeatures)
            batch.inputs = SparseRows.of(source.take(block.sources, workers))
        else:
            out = self._take(batch, (len(block.sources), source.width))
            source.rows(block.sources, out, workers)
            batch.inputs = torch.from_numpy(out)

    def _take(self, batch: MiniBatch, shape: tuple[int, int]) -> NDArray[np.float32]:
        out: NDArray[np.float32] = self._pool.take(shape, np.float32)
        batch.when_released(lambda: self._pool.give(out))
        return out


class LoadStage:
    """Loads one share after the other.

    Parameters
    ----------
    loader
        Fills in the inputs.
    trainers
        Those that the shares belong to; their plans say in which form.
    schedule
        How many threads a step has.
    workers
        The stage's threads.
    """

    def __init__(
        self, loader: Loader, trainers: Sequence[Trainer], schedule: Schedule, workers: Workers
    ) -> None:
        self._loader = loader
        self._trainers = trainers
        self._schedule = schedule
        self._workers = workers

    def __call__(self, share: Share) -> None:
        """Fill in the inputs of a share's mini-batch, if it has one."""
        batch, trainer = share.batch, self._trainers[share.trainer]
        if batch is not None:
            self._workers.resize(self._schedule.of(share.work.step).threads.load)
            trainer.work("load", share, lambda: self._loader.load(batch, trainer.plan, self._workers))
