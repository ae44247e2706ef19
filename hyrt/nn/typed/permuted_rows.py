"""Differentiable row permutations."""

from __future__ import annotations

from typing import Any, cast

import torch

from hyrt.graph.row_kernels import gather_rows
from hyrt.machine.workers import current_workers
from hyrt.nn.operators.first_derivative import first_derivative
from hyrt.nn.operators.result_memory import empty

_GRAIN = 2048


def take_rows(x: torch.Tensor, rows: Any) -> torch.Tensor:
    """Return x[rows] without a gradient; on the host, the calling thread's team gathers the rows."""
    if isinstance(rows, torch.Tensor):
        return x.index_select(0, rows)
    source = x.detach().contiguous()
    out = empty((len(rows), *x.shape[1:]), source)
    flat, result = source.flatten(1).numpy(), out.flatten(1).numpy()
    current_workers().run_rows(
        lambda start, stop: gather_rows(flat, rows, result, start, stop), len(rows), _GRAIN
    )
    return out


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, order: Any, places: Any) -> torch.Tensor:
        ctx.places = places
        return take_rows(x, order)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return take_rows(grad, ctx.places), None, None


def permuted(x: torch.Tensor, order: Any, places: Any) -> torch.Tensor:
    """Return x[order], differentiable.

    Parameters
    ----------
    x
        [n, ...].
    order, places
        [n] a permutation and its inverse: int32 arrays, or tensors if x is on a device.
    """
    return cast(torch.Tensor, _Permuted.apply(x, order, places))  # type: ignore[no-untyped-call]
