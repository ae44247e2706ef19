"""A product whose rows are divided over ranks by columns: partial products are pushed to who needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.rank_group import RankGroup
from hyrt.nn.inputs import DividedRows
from hyrt.nn.operators.first_derivative import first_derivative
from hyrt.quantities import one_line

_PURPOSE = "hidden"


@dataclass(frozen=True, slots=True, eq=False)
class DividedProduct(DividedRows):
    """The first layer's rows of all ranks' mini-batches, of which this rank has some columns (P3).

    All ranks compute their products at once: each computes its part of everyone's, pushes it to the rank of
    the mini-batch, and takes the gradient from there.
    """

    rows: Sequence[NDArray[np.float32]]
    """For each rank [n, own columns], what its first layer multiplies."""
    columns: NDArray[np.intp]
    """[own columns] the columns of the layer's weight that belong to them."""
    group: RankGroup
    """The ranks, for the thread that propagates."""

    __repr__ = one_line

    def product(self, weight: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, _PushPull.apply(weight, self))  # type: ignore[no-untyped-call]

    def push(self, weight: torch.Tensor) -> torch.Tensor:
        """[n, out], the sum of all ranks' parts of this rank's product; every rank calls it at once."""
        group = self.group
        of_columns = weight.detach()[:, torch.from_numpy(self.columns)].t().contiguous()
        counts = [len(each) for each in self.rows]
        given = torch.cat([torch.from_numpy(each) @ of_columns for each in self.rows])
        num = counts[group.rank]
        taken = torch.empty(group.size * num, given.shape[1])
        group.exchange(given, counts, taken, [num] * group.size, _PURPOSE)
        return taken.view(group.size, num, given.shape[1]).sum(0)

    def pull(self, grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """The gradient of the weight, in this rank's columns, from that of the product; likewise."""
        group = self.group
        counts = [len(each) for each in self.rows]
        given = grad.detach().repeat(group.size, 1)
        taken = torch.empty(sum(counts), grad.shape[1])
        group.exchange(given, [len(grad)] * group.size, taken, counts, _PURPOSE)
        found = torch.zeros_like(weight)
        parts = torch.split(taken, counts)
        for rows, part in zip(self.rows, parts, strict=True):
            found[:, torch.from_numpy(self.columns)] += part.t() @ torch.from_numpy(rows)
        return found


class _PushPull(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, divided: DividedProduct) -> torch.Tensor:
        ctx.divided = divided
        ctx.save_for_backward(weight)
        return divided.push(weight)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (weight,) = ctx.saved_tensors
        return ctx.divided.pull(grad, weight), None
