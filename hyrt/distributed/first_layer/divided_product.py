"""Feature-parallel linear layer: each rank multiplies its columns and pushes partial products."""

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
    """First-layer inputs of all ranks' mini-batches, of which this rank holds some columns (P3).

    All ranks compute their products at the same time: each rank computes its part of every rank's product,
    pushes
    it to the rank of the mini-batch, and pulls the gradient from that rank.
    """

    rows: Sequence[NDArray[np.float32]]
    """For each rank [n, local columns], the input of its first layer."""
    columns: NDArray[np.intp]
    """[local columns] the corresponding columns of the layer's weight."""
    group: RankGroup
    """The ranks, for the propagation thread."""

    __repr__ = one_line

    def product(self, weight: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, _PushPull.apply(weight, self))  # type: ignore[no-untyped-call]

    def push(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' parts of this rank's product, [n, out].

        Every rank must call it at the same time.
        """
        group = self.group
        local_weight = self._local_columns(weight)
        counts = [len(rows) for rows in self.rows]
        sent = torch.empty(sum(counts), len(local_weight))
        for rows, part in zip(self.rows, torch.split(sent, counts), strict=True):
            product_of_rows(torch.from_numpy(rows), local_weight, None, precision=sent.dtype, out=part)
        num = counts[group.rank]
        received = torch.empty(group.size * num, sent.shape[1])
        group.exchange(sent, counts, received, [num] * group.size, _PURPOSE)
        return received.view(group.size, num, sent.shape[1]).sum(0)

    def pull(self, grad: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Compute the weight's gradient in this rank's columns from the gradient of the product.

        Every rank must call it at the same time.
        """
        group = self.group
        counts = [len(rows_of_rank) for rows_of_rank in self.rows]
        sent = grad.detach().repeat(group.size, 1)
        received = torch.empty(sum(counts), grad.shape[1])
        group.exchange(sent, [len(grad)] * group.size, received, counts, _PURPOSE)
        local_weight = self._local_columns(weight)
        total = torch.zeros_like(local_weight)
        for rows, part in zip(self.rows, torch.split(received, counts), strict=True):
            partial_gradient, _ = gradients_of_product(
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
    def forward(ctx: Any, weight: torch.Tensor, divided: DividedProduct) -> torch.Tensor:
        ctx.divided = divided
        ctx.save_for_backward(weight)
        return divided.push(weight)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (weight,) = ctx.saved_tensors
        return ctx.divided.pull(grad, weight), None
