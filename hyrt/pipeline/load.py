"""The load stage: input features of a mini-batch, in the form its trainer takes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.device import InputForm
from hyrt.graph.graph import DenseFeatures, Graph, SparseFeatures
from hyrt.machine.buffer_pool import BufferPool
from hyrt.machine.workers import Workers
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.layers import Aggregated, InPlace
from hyrt.nn.operators import kernels
from hyrt.nn.operators.aggregate import aggregate_into
from hyrt.nn.operators.sparse import SparseRows
from hyrt.sampling.block import Block, Ids, MiniBatch
from hyrt.sampling.kernels import prefix_sum

if TYPE_CHECKING:
    from hyrt.pipeline.schedule import Schedule
    from hyrt.pipeline.shares import Share
    from hyrt.pipeline.trainer import Trainer

_GRAIN = 512


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
        Its `input_aggregation`, `reads_rows_in_place` and `takes_sparse_rows`, where it has them, say what it takes.
    graph
        For the kind of its features.
    forms
        What the device takes.
    fuse
        Whether loading and aggregation may be fused.
    """
    if isinstance(graph.features, SparseFeatures):
        takes_sparse = "sparse" in forms and getattr(model, "takes_sparse_rows", False)
        return InputPlan("sparse" if takes_sparse else "rows")
    if fuse:
        aggregation = getattr(model, "input_aggregation", None)
        if aggregation is not None and "aggregated" in forms:
            return InputPlan("aggregated", aggregation)
        if "in_place" in forms and getattr(model, "reads_rows_in_place", False):
            return InputPlan("in_place")
    return InputPlan("ids" if "ids" in forms else "rows")


def feature_rows(features: DenseFeatures) -> NDArray[Any]:
    """The feature matrix as the kernels read it: halves as their 16 bits."""
    values: NDArray[Any] = features.values
    return values.view(np.uint16) if values.dtype == np.float16 else values


class Loader:
    """Fills `MiniBatch.inputs` from the graph's features into pooled buffers."""

    def __init__(self, graph: Graph) -> None:
        self._features = graph.features
        self._pool = BufferPool()
        self._rows = feature_rows(graph.features) if isinstance(graph.features, DenseFeatures) else None

    def load(self, batch: MiniBatch, plan: InputPlan, workers: Workers) -> None:
        """Load one mini-batch.

        Parameters
        ----------
        batch
            Sampled with `in_place=plan.in_place`.
        plan
            The form its trainer takes.
        workers
            Who runs the chunks.
        """
        block = batch.blocks[0]
        if plan.form == "ids":
            return
        if isinstance(self._features, SparseFeatures):
            assert block.sources is not None
            sparse = gather_sparse(self._features, block.sources, workers)
            batch.inputs = sparse if plan.form == "sparse" else sparse.dense(workers)
        elif plan.form == "in_place":
            assert self._rows is not None
            batch.inputs = InPlace(self._rows)
        elif plan.aggregation is not None:
            batch.inputs = Aggregated(self._aggregate(batch, block, plan.aggregation, workers))
        else:
            batch.inputs = self._gather(batch, block, workers)

    def _take(self, batch: MiniBatch, shape: tuple[int, int]) -> NDArray[np.float32]:
        out: NDArray[np.float32] = self._pool.take(shape, np.float32)
        batch.when_released(lambda: self._pool.give(out))
        return out

    def _aggregate(
        self, batch: MiniBatch, block: Block, aggregation: Aggregation, workers: Workers
    ) -> torch.Tensor:
        rows = self._rows
        assert rows is not None
        out = self._take(batch, (block.num_dst, aggregation.width(rows.shape[1])))
        aggregate_into(aggregation, block, rows, out, workers=workers)
        return torch.from_numpy(out)

    def _gather(self, batch: MiniBatch, block: Block, workers: Workers) -> torch.Tensor:
        rows, sources = self._rows, block.sources
        assert rows is not None
        assert sources is not None
        out = self._take(batch, (len(sources), rows.shape[1]))
        workers.run(
            lambda start, stop: kernels.gather_rows(rows, sources, out, start, stop), len(sources), _GRAIN
        )
        return torch.from_numpy(out)


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


def gather_sparse(features: SparseFeatures, rows: Ids, workers: Workers) -> SparseRows:
    """The given rows of sparse features, in order."""
    counts = features.indptr[rows + 1] - features.indptr[rows]
    indptr = np.empty(len(rows) + 1, np.int64)
    prefix_sum(counts, indptr)
    columns = np.empty(indptr[-1], np.int32)
    values = np.empty(indptr[-1], np.float32)
    workers.run(
        lambda start, stop: kernels.gather_sparse_rows(
            features.indptr, features.columns, features.values, rows, indptr, columns, values, start, stop
        ),
        len(rows),
        _GRAIN,
    )
    return SparseRows(indptr, columns, values, features.width)
