"""Linear layers over tall matrices, in chunks of rows that stay in cache.

Each chunk is multiplied by one thread of the stage's team: a bias, a ReLU and its derivative are applied
while the rows are in cache, and the result does not depend on the number of threads. Weight gradients are
summed chunk by chunk in a fixed order.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from hyrt.nn.operators.chunk_product import in_chunks, multiply, multiply_turned
from hyrt.nn.operators.first_derivative import first_derivative
from hyrt.nn.operators.gradients.masked_gradient import mask_gradient
from hyrt.nn.operators.result_memory import empty
from hyrt.nn.tensor_operators.tensor_ops import linear_tensors

# Minimum rows per chunk, and maximum elements of a chunk with more rows.
GRAIN = 1024
_NUMBERS = 1 << 18


def _grain(rows: int, columns: int) -> int:
    """Return the rows per chunk: more for short rows, to amortize the cost of a library call."""
    fitting = max(1, _NUMBERS // max(1, rows + columns))
    return max(GRAIN, 1 << fitting.bit_length() - 1)


def product_of_rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    precision: torch.dtype,
    relu: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `linear` without autograd, on tensors that require no gradient.

    Parameters
    ----------
    x, weight, bias, relu
        The arguments of `linear`.
    precision
        The dtype to multiply in.
    out
        [n, out] receives the result and is returned; new memory by default.
    """
    # `len` of a tensor takes ten times as long.
    num = x.shape[0]
    out = empty((num, weight.shape[0]), x) if out is None else out
    if precision != x.dtype:
        weight, bias = weight.to(precision), None if bias is None else bias.to(precision)
    transposed = weight.t()

    def work(start: int, stop: int) -> None:
        multiply(x[start:stop], transposed, out[start:stop], precision=precision, bias=bias, relu=relu)

    in_chunks(work, num, _grain(*weight.shape))
    return out


def gradients_of_product(
    x: torch.Tensor,
    weight: torch.Tensor,
    grad: torch.Tensor,
    *,
    precision: torch.dtype,
    result: torch.Tensor | None = None,
    x_grad: torch.Tensor | None = None,
    adds: bool = False,
    needs_weight: bool = True,
    needs_bias: bool = True,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Compute the gradients of a product, on tensors that require no gradient.

    Parameters
    ----------
    x, weight, precision
        The arguments of `product_of_rows`.
    grad
        [n, out] the gradient of its result, C-contiguous.
    result
        The result of `product_of_rows` if a ReLU was applied, otherwise None.
    x_grad
        [n, in] receives the gradient of x; None if it is not needed.
    adds
        Add to `x_grad` instead of replacing it.
    needs_weight, needs_bias
        Whether to compute the gradients of the weight and of the bias.

    Returns
    -------
    The gradients of the weight and of the bias; None for a gradient that is not needed.
    """
    grain, num = _grain(*weight.shape), x.shape[0]
    chunks = -(-num // grain)
    weight_parts = empty((chunks, *weight.shape), weight) if needs_weight else None
    bias_parts = weight.new_empty(chunks, weight.shape[0]) if needs_bias else None
    w = weight if weight.dtype == precision else weight.to(precision)

    def work(start: int, stop: int) -> None:
        chunk = start // grain
        g = grad[start:stop]
        sums = None if bias_parts is None else bias_parts[chunk]
        if result is not None:
            masked = torch.empty_like(g)
            sums = g.new_empty(g.shape[1]) if sums is None else sums
            mask_gradient(*(t.numpy() for t in (g, result[start:stop], masked, sums)))
            g = masked
        elif sums is not None:
            torch.sum(g, 0, out=sums)
        g = g if g.dtype == precision else g.to(precision)
        if x_grad is not None:
            multiply(g, w, x_grad[start:stop], precision=precision, adds=adds)
        if weight_parts is not None:
            multiply_turned(x[start:stop], g, weight_parts[chunk], precision=precision)

    in_chunks(work, num, grain)
    return (
        None if weight_parts is None else _sum(weight_parts),
        None if bias_parts is None else _sum(bias_parts),
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        relu: bool,
        low_precision: bool,
    ) -> torch.Tensor:
        ctx.precision = torch.bfloat16 if low_precision else x.dtype
        # Detached: otherwise autograd would record the operations of the team's threads.
        factors = x.detach(), weight.detach(), None if bias is None else bias.detach()
        out = product_of_rows(*factors, precision=ctx.precision, relu=relu)
        ctx.save_for_backward(x, weight, out if relu else None)
        ctx.has_bias = bias is not None
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        x_grad = empty(tuple(x.shape), x) if needs_x else None
        weight_grad, bias_grad = gradients_of_product(
            x.detach(),
            weight.detach(),
            grad.detach().contiguous(),
            precision=ctx.precision,
            result=None if out is None else out.detach(),
            x_grad=x_grad,
            needs_weight=needs_weight,
            needs_bias=ctx.has_bias,
        )
        return x_grad, weight_grad, bias_grad, None, None


def _sum(parts: torch.Tensor) -> torch.Tensor:
    """Return the sum of the chunks' parts, without a copy if there is only one."""
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    relu: bool = False,
    low_precision: bool = False,
) -> torch.Tensor:
    """Multiply rows by a transposed weight and add a bias, optionally through a ReLU.

    Parameters
    ----------
    x
        [n, in] float32 or float64.
    weight
        [out, in].
    bias
        [out] or None.
    relu
        Apply a ReLU to the result.
    low_precision
        Multiply in bfloat16 (and accumulate in float32 within a product); weights, gradients and results keep
        their dtype.

    Returns
    -------
    [n, out].

    Raises
    ------
    ValueError
        If the shapes or dtypes of x, weight and bias do not match.
    """
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"x has shape {tuple(x.shape)} and the weight {tuple(weight.shape)}: x must be [n, in] for "
            "a weight [out, in]"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"the bias has shape {tuple(bias.shape)}, but the weight has {len(weight)} rows: give a "
            f"bias of shape [{len(weight)}]"
        )
    if x.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        raise ValueError(
            f"x is {x.dtype}, the weight {weight.dtype}, the bias {None if bias is None else bias.dtype}: "
            "give equal dtypes"
        )
    if x.device.type != "cpu":
        return linear_tensors(x, weight, bias, relu=relu, low_precision=low_precision)
    return cast(torch.Tensor, _Linear.apply(x, weight, bias, relu, low_precision))  # type: ignore[no-untyped-call]
