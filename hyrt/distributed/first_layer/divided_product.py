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
from hyrt.nn.operators.product import gradients_of_product, product_of_rows
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
        of_columns = self._own_columns(weight)
        counts = [len(each) for each in self.rows]
        given = torch.empty(sum(counts), len(of_columns))
        for each, part in zip(self.rows, torch.split(given, counts), strict=True):
            product_of_rows(torch.from_numpy(each), of_columns, None, precision=given.dtype, out=part)
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
        of_columns = self._own_columns(weight)
        total = torch.zeros_like(of_columns)
        for rows, part in zip(self.rows, torch.split(taken, counts), strict=True):
            of_rows, _ = gradients_of_product(
                torch.from_numpy(rows), of_columns, part, precision=part.dtype, needs_bias=False
            )
            assert of_rows is not None
            total += of_rows
        gradient = torch.zeros_like(weight)
        gradient[:, torch.from_numpy(self.columns)] = total
        return gradient

    def _own_columns(self, weight: torch.Tensor) -> torch.Tensor:
        """Return [out, own columns], the part of the weight that multiplies this rank's columns."""
        return weight.detach()[:, torch.from_numpy(self.columns)]


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
