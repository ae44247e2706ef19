"""Feature-parallel inputs: each rank holds some columns of all rows (P3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.first_layer.divided_product import DividedProduct
from hyrt.distributed.first_layer.every_rank import EveryRank
from hyrt.distributed.rank_group import RankGroup
from hyrt.graph.row_source import DenseFeatures
from hyrt.machine.workers import Workers
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.operators.aggregate import aggregate_into
from hyrt.pipeline.synchronize import Reduction, StepTotals
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch


class DividedColumns:
    """Provides the input of the first layer, which is computed from the columns of all ranks.

    Every rank must fetch the same steps in the same order, even without targets, because other ranks need its
    columns.

    Parameters
    ----------
    matrix
        [V, local columns] float32, this rank's columns of all rows.
    columns
        [local columns] their numbers.
    width
        Number of columns of a complete row.
    aggregation
        Aggregation of the first layer before it multiplies; None if it multiplies each source's row.
    weight
        Index of the first layer's weight among the parameters.
    parameters
        Master weights.
    sampled
        Samples the mini-batches of all ranks; in place if there is an aggregation.
    group
        The ranks, for the propagation thread.
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
        sampled: EveryRank,
        group: RankGroup,
    ) -> None:
        self.width = width
        self.value_bytes = matrix.itemsize
        self.nbytes = matrix.nbytes
        self._matrix = matrix
        self._aggregation = aggregation
        self._weight = weight
        self._parameters = list(parameters)
        self._batches = sampled
        self._group = group
        uses_both_halves = aggregation is not None and aggregation.self_path == "concat"
        self._columns = np.concatenate([columns, width + columns]) if uses_both_halves else columns
        self._products: dict[int, DividedProduct] = {}
        # Steps in the order in which they end, and whether this rank has targets in each step.
        self._open_steps: deque[tuple[int, bool]] = deque()

    def fetch(self, step: int, ids: Sequence[NDArray[Any]], workers: Workers) -> None:
        if step in self._products:
            return
        no_rows = np.empty((0, len(self._columns)), np.float32)
        rows = [no_rows] * self._group.size
        for rank, batch in self._batches.batches(step, workers).items():
            rows[rank] = self._rows(batch.blocks[0], workers)
            batch.release()
        self._products[step] = DividedProduct(rows, self._columns, self._group)
        self._open_steps.append((step, bool(ids)))

    def release(self, step: int) -> None:
        """No-op: `finishing` releases the step, since other ranks may need its columns."""

    def end(self) -> None:
        """No-op: no thread waits for rows."""

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        raise TypeError("with strategy p3, a rank has only some columns of the rows")

    def inputs(self, batch: MiniBatch, workers: Workers) -> DividedProduct:
        return self._products[batch.step]

    def finishing(self, reduction: Reduction) -> Reduction:
        """Wrap the reduction so that this rank also takes part in steps in which it has no targets."""

        def reduce(own: StepTotals) -> StepTotals:
            step, trains = self._open_steps.popleft()
            product = self._products.pop(step)
            return reduction(own if trains else self._join_step(product, own))

        return reduce

    def _rows(self, block: Block, workers: Workers) -> NDArray[np.float32]:
        """Compute the input of the first layer's product, in the columns of this rank."""
        if self._aggregation is None:
            assert block.sources is not None
            out = np.empty((len(block.sources), len(self._columns)), np.float32)
            DenseFeatures(self._matrix).rows(block.sources, out, workers)
        else:
            out = np.empty((block.num_dst, len(self._columns)), np.float32)
            aggregate_into(self._aggregation, block, self._matrix, out, workers=workers)
        return out

    def _join_step(self, product: DividedProduct, totals: StepTotals) -> StepTotals:
        """Take part in the products and gradients of a step in which this rank has no targets."""
        weight = self._parameters[self._weight]
        gradients = [torch.zeros_like(parameter) for parameter in self._parameters]
        with torch.no_grad():
            no_rows = product.push(weight.flatten(0, -2))
            gradients[self._weight] = product.pull(no_rows, weight.flatten(0, -2)).view_as(weight)
        return replace(totals, gradients=gradients)
