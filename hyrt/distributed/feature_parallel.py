"""Feature parallelism (P3): each rank multiplies some columns of all feature rows and pushes the partial
products to the ranks that train the mini-batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.local_rows import LocalRows
from hyrt.distributed.process_group import RankGroup
from hyrt.distributed.sampling import AllRankBatches
from hyrt.distributed.strategies.strategy import Ranks
from hyrt.errors import ConfigError
from hyrt.formatting import short_repr
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn.architecture import Aggregation
from hyrt.nn.description import overrides_only
from hyrt.nn.layer import ColumnShardedFeatures, get_model_inputs
from hyrt.nn.layers import ConvolutionLayer, GatLayer, GinLayer
from hyrt.nn.model import GNN
from hyrt.nn.operators.aggregate import aggregate_into
from hyrt.nn.operators.autograd import once_differentiable
from hyrt.nn.operators.linear import linear_backward, linear_forward
from hyrt.pipeline.synchronize import Reduction, StepTotals
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch

# Number of rows per exchange. Its buffers stay small compared with the columns that a rank holds.
_ROWS = 65_536


def gather_columns(
    local_rows: LocalRows, column_owners: Ranks, group: RankGroup, workers: Workers
) -> NDArray[np.float32]:
    """Gather this rank's columns of all rows, [V, columns]; all ranks must call this at the same time.

    `local_rows` have all columns. `column_owners` [F] int32 is the rank that holds each column.
    """
    rank, size = group.rank, group.size
    columns = [np.flatnonzero(column_owners == item) for item in range(size)]
    vertices = [np.flatnonzero(local_rows.owners == item) for item in range(size)]
    result = np.empty((len(local_rows.owners), len(columns[rank])), np.float32)
    for start in range(0, max(len(item) for item in vertices), _ROWS):
        batch_vertices = [item[start : start + _ROWS] for item in vertices]
        rows = np.empty((len(batch_vertices[rank]), local_rows.rows.width), np.float32)
        local_rows.rows.rows(local_rows.local_ids[batch_vertices[rank]], rows, workers)
        sent = np.concatenate([rows[:, item].ravel() for item in columns])
        receive_counts = [len(item) * result.shape[1] for item in batch_vertices]
        received = np.empty(sum(receive_counts), np.float32)
        group.all_to_all(
            torch.from_numpy(sent),
            [len(rows) * len(item) for item in columns],
            torch.from_numpy(received),
            receive_counts,
            "columns",
        )
        result[np.concatenate(batch_vertices)] = received.reshape(-1, result.shape[1])
    return result


def feature_parallel_weight(model: torch.nn.Module) -> torch.nn.Parameter:
    """Return the first layer's weight that multiplies the input rows or their aggregates.

    Raises ConfigError if the first layer is not a sum over columns before its activation, or if other layers
    read the rows.
    """
    if isinstance(model, GNN) and not overrides_only(type(model), "forward", "layer"):
        architecture, layer = model.architecture, model.layers[0]
        is_only_reader = (
            architecture.input_dropout == 0 and not model.adds_residual(0) and not architecture.low_precision
        )
        if is_only_reader and isinstance(layer, GatLayer):
            return layer.weight
        inner = layer.inner if isinstance(layer, GinLayer) else layer
        aggregation = get_model_inputs(model).aggregation
        if (
            is_only_reader
            and isinstance(inner, ConvolutionLayer)
            and aggregation
            and aggregation.reduce != "max"
        ):
            return inner.weight
    raise ConfigError(
        "distributed.strategy=p3 divides the first layer by feature columns, which is supported only for "
        "gcn, deepgcn, graphsage with mean or sum, gin and gat, without input dropout, bf16 or a residual "
        "connection of the first layer: change the model, or use another strategy"
    )


_PURPOSE = "hidden"


@dataclass(frozen=True, slots=True, eq=False)
class FeatureParallelLinear(ColumnShardedFeatures):
    """Input of the first layer for the mini-batches of all ranks, in the columns that this rank holds (P3).

    All ranks compute at the same time: each rank computes its part of every rank's product, pushes it to
    the rank of the mini-batch, and pulls the gradient from that rank.
    """

    rows: Sequence[NDArray[np.float32]]
    """First-layer input of each rank's mini-batch, [n, local columns]."""
    columns: NDArray[np.intp]
    """Indices of the local columns in the layer's weight, [local columns]."""
    group: RankGroup
    """Group of all ranks for the propagation thread."""

    __repr__ = short_repr

    def product(self, weight: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, _PushPull.apply(weight, self))  # type: ignore[no-untyped-call]

    def push(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' parts of this rank's product, [n, out].

        All ranks must call this at the same time.
        """
        group = self.group
        local_weight = self._local_columns(weight)
        counts = [len(rows) for rows in self.rows]
        sent = torch.empty(sum(counts), len(local_weight))
        for rows, part in zip(self.rows, torch.split(sent, counts), strict=True):
            linear_forward(torch.from_numpy(rows), local_weight, None, precision=sent.dtype, out=part)
        num = counts[group.rank]
        received = torch.empty(group.size * num, sent.shape[1])
        group.all_to_all(sent, counts, received, [num] * group.size, _PURPOSE)
        return received.view(group.size, num, sent.shape[1]).sum(0)

    def pull(self, grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Compute the gradient of the weight in this rank's columns from the gradient of the product.

        All ranks must call this at the same time.
        """
        group = self.group
        counts = [len(rows_of_rank) for rows_of_rank in self.rows]
        sent = grad.detach().repeat(group.size, 1)
        received = torch.empty(sum(counts), grad.shape[1])
        group.all_to_all(sent, [len(grad)] * group.size, received, counts, _PURPOSE)
        local_weight = self._local_columns(weight)
        total = torch.zeros_like(local_weight)
        for rows, part in zip(self.rows, torch.split(received, counts), strict=True):
            partial_gradient, _ = linear_backward(
                torch.from_numpy(rows), local_weight, part, precision=part.dtype, needs_bias=False
            )
            assert partial_gradient is not None
            total += partial_gradient
        gradient = torch.zeros_like(weight)
        gradient[:, torch.from_numpy(self.columns)] = total
        return gradient

    def _local_columns(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the part of the weight that multiplies this rank's columns, [out, local columns]."""
        return weight.detach()[:, torch.from_numpy(self.columns)]


class _PushPull(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, divided: FeatureParallelLinear) -> torch.Tensor:
        ctx.divide = divided
        ctx.save_for_backward(weight)
        return divided.push(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (weight,) = ctx.saved_tensors
        return ctx.divide.pull(grad, weight), None


class FeatureParallelInput:
    """Row source for feature parallelism, which computes each step's first-layer input in the local columns.

    Every rank must fetch the same steps in the same order, even without targets, because other ranks need its
    columns. `matrix` is float32 [V, local columns], this rank's columns of all rows, and `columns` are their
    indices in a complete row of `width` columns. `aggregation` is None if the first layer multiplies each
    source's row. `weight` is the index of the first layer's weight in `parameters`, the master weights.
    `batches` samples the mini-batches of all ranks, in place if there is an aggregation. `group` belongs to
    the propagation thread.
    """

    matrix = None

    def __init__(
        self,
        matrix: NDArray[np.float32],
        columns: NDArray[np.intp],
        width: int,
        aggregation: Aggregation | None,
        weight: int,
        parameters: Sequence[torch.Tensor],
        batches: AllRankBatches,
        group: RankGroup,
    ) -> None:
        self.width = width
        self.value_bytes = matrix.itemsize
        self.nbytes = matrix.nbytes
        self._matrix = matrix
        self._aggregation = aggregation
        self._weight = weight
        self._parameters = list(parameters)
        self._batches = batches
        self._group = group
        uses_both_halves = aggregation is not None and aggregation.self_path == "concat"
        self._columns = np.concatenate([columns, width + columns]) if uses_both_halves else columns
        self._products: dict[int, FeatureParallelLinear] = {}
        # Steps in the order in which they end, each with a flag: does this rank have targets in the step?
        self._open_steps: deque[tuple[int, bool]] = deque()

    def fetch(self, step: int, ids: Sequence[NDArray[Any]], workers: Workers) -> None:
        if step in self._products:
            return
        no_rows = np.empty((0, len(self._columns)), np.float32)
        rows = [no_rows] * self._group.size
        for rank, batch in self._batches.batches(step, workers).items():
            rows[rank] = self._rows(batch.blocks[0], workers)
            batch.release()
        self._products[step] = FeatureParallelLinear(rows, self._columns, self._group)
        self._open_steps.append((step, bool(ids)))

    def release(self, step: int) -> None:
        """Do nothing: `wrap_reduction` releases the step, since other ranks may need its columns."""

    def end(self) -> None:
        """Do nothing, because no thread waits for rows."""

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        raise TypeError("with strategy p3, a rank has only some columns of the rows")

    def inputs(self, batch: MiniBatch, workers: Workers) -> FeatureParallelLinear:
        return self._products[batch.step]

    def wrap_reduction(self, reduction: Reduction) -> Reduction:
        """Wrap the reduction so that this rank also takes part in steps in which it has no targets."""

        def reduce(totals: StepTotals) -> StepTotals:
            step, trains = self._open_steps.popleft()
            product = self._products.pop(step)
            return reduction(totals if trains else self._join_step(product, totals))

        return reduce

    def _rows(self, block: Block, workers: Workers) -> NDArray[np.float32]:
        """Compute the columns of the first layer's input that this rank holds."""
        if self._aggregation is None:
            assert block.sources is not None
            out = np.empty((len(block.sources), len(self._columns)), np.float32)
            DenseFeatures(self._matrix).rows(block.sources, out, workers)
        else:
            out = np.empty((block.num_dst, len(self._columns)), np.float32)
            aggregate_into(self._aggregation, block, self._matrix, out, workers=workers)
        return out

    def _join_step(self, product: FeatureParallelLinear, totals: StepTotals) -> StepTotals:
        """Take part in the products and gradients of a step in which this rank has no targets."""
        weight = self._parameters[self._weight]
        gradients = [torch.zeros_like(parameter) for parameter in self._parameters]
        with torch.no_grad():
            no_rows = product.push(weight.flatten(0, -2))
            gradients[self._weight] = product.pull(no_rows, weight.flatten(0, -2)).view_as(weight)
        return replace(totals, gradients=gradients)
