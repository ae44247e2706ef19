"""Input rows of which each rank has some columns, for a first layer that all ranks compute together (P3)."""

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
    """Gives the first layer of a mini-batch the product of its rows, from the columns of all ranks.

    Every rank fetches the same steps in the same order, also those in which it trains nothing, because others
    may need its columns.

    Parameters
    ----------
    matrix
        [V, own columns] float32, the columns of all rows that this rank keeps.
    columns
        [own columns] their numbers.
    width
        The columns of a whole row.
    aggregation
        What the first layer combines before it multiplies; None where it multiplies each source's row.
    weight
        The number of the first layer's weight among the parameters.
    parameters
        The master weights.
    sampled
        Samples the mini-batches of all ranks; in place where there is an aggregation.
    group
        The ranks, for the thread that propagates.
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
        self._sampled = sampled
        self._group = group
        both = aggregation is not None and aggregation.self_path == "concat"
        self._columns = np.concatenate([columns, width + columns]) if both else columns
        self._kept: dict[int, DividedProduct] = {}
        # Steps in the order in which they end, and whether this rank trains something in them.
        self._begun: deque[tuple[int, bool]] = deque()

    def fetch(self, step: int, ids: Sequence[NDArray[Any]], workers: Workers) -> None:
        if step in self._kept:
            return
        none = np.empty((0, len(self._columns)), np.float32)
        rows = [none] * self._group.size
        for rank, batch in self._sampled.batches(step, workers).items():
            rows[rank] = self._rows(batch.blocks[0], workers)
            batch.release()
        self._kept[step] = DividedProduct(rows, self._columns, self._group)
        self._begun.append((step, bool(ids)))

    def release(self, step: int) -> None:
        """The step stays until its sums are added (`finishing`): other ranks may need its columns."""

    def end(self) -> None:
        """Nobody waits for rows."""

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        raise TypeError("with strategy p3, a rank has some columns of the rows, and no rows")

    def inputs(self, batch: MiniBatch, workers: Workers) -> DividedProduct:
        return self._kept[batch.step]

    def finishing(self, reduction: Reduction) -> Reduction:
        """The reduction of steps; this rank takes part in those, too, in which it trains nothing."""

        def reduce(own: StepTotals) -> StepTotals:
            step, trains = self._begun.popleft()
            divided = self._kept.pop(step)
            return reduction(own if trains else self._for_others(divided, own))

        return reduce

    def _rows(self, block: Block, workers: Workers) -> NDArray[np.float32]:
        """What the first layer multiplies, in the columns of this rank."""
        if self._aggregation is None:
            assert block.sources is not None
            out = np.empty((len(block.sources), len(self._columns)), np.float32)
            DenseFeatures(self._matrix).rows(block.sources, out, workers)
        else:
            out = np.empty((block.num_dst, len(self._columns)), np.float32)
            aggregate_into(self._aggregation, block, self._matrix, out, workers=workers)
        return out

    def _for_others(self, divided: DividedProduct, own: StepTotals) -> StepTotals:
        """Take part in the products and gradients of a step in which this rank has no targets."""
        weight = self._parameters[self._weight]
        gradients = [torch.zeros_like(parameter) for parameter in self._parameters]
        with torch.no_grad():
            none = divided.push(weight.flatten(0, -2))
            gradients[self._weight] = divided.pull(none, weight.flatten(0, -2)).view_as(weight)
        return replace(own, gradients=gradients)
