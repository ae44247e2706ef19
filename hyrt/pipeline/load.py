"""The load stage: input features of a mini-batch, in the form its trainer takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.row_source import RowSource, SparseFeatures
from hyrt.machine.buffer_pool import BufferPool
from hyrt.machine.workers import Workers
from hyrt.nn.inputs import Aggregated, InPlace
from hyrt.nn.operators.aggregate import aggregate_into
from hyrt.nn.operators.sparse import SparseRows
from hyrt.pipeline.schedule import Schedule
from hyrt.pipeline.shares import Share
from hyrt.pipeline.trainer import InputPlan, Trainer
from hyrt.sampling.minibatch import MiniBatch


class Loader:
    """Fills `MiniBatch.inputs` with the feature rows of its input vertices, in pooled buffers.

    Parameters
    ----------
    source
        The source of the feature rows.
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


@dataclass(frozen=True, slots=True)
class LoadStage:
    """Loads the shares of trainers, in the forms that their plans say."""

    loader: Loader
    trainers: Sequence[Trainer]
    schedule: Schedule
    workers: Workers

    def __call__(self, share: Share) -> None:
        """Fill in the inputs of a share's mini-batch, if it has one."""
        batch, trainer = share.batch, self.trainers[share.trainer]
        if batch is not None:
            self.workers.resize(self.schedule.of(share.work.step).threads.load)
            trainer.work("load", share, lambda: self.loader.load(batch, trainer.plan, self.workers))
