"""Dense products of tall matrices, in chunks of rows that stay in cache.

Each chunk is multiplied by one thread of the stage's team, so a bias, a ReLU and its derivative are applied
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

# Rows of a chunk, and how many numbers those of a chunk with more rows have at most.
GRAIN = 1024
_NUMBERS = 1 << 17


def _grain(rows: int, columns: int) -> int:
    """Rows of a chunk: of narrow ones more, for a call of the library costs as much as hundreds of them."""
    fitting = max(1, _NUMBERS // max(1, rows + columns))
    return max(GRAIN, 1 << fitting.bit_length() - 1)


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
        # `len` of a tensor takes ten times as long.
        num = x.shape[0]
        out = empty((num, weight.shape[0]), x)
        precision = torch.bfloat16 if low_precision else x.dtype
        turned = weight.detach().to(precision).t()
        b = None if bias is None else bias.detach().to(precision)
        # Detached: the threads of a team would record what they do with what takes a gradient.
        rows = x.detach()

        def work(start: int, stop: int) -> None:
            multiply(rows[start:stop], turned, out[start:stop], precision=precision, bias=b, relu=relu)

        in_chunks(work, num, _grain(*weight.shape))
        ctx.save_for_backward(x, weight, out if relu else None)
        ctx.has_bias = bias is not None
        ctx.precision = precision
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        precision = ctx.precision
        grad = grad.detach().contiguous()
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        grain = _grain(*weight.shape)
        num = x.shape[0]
        chunks = -(-num // grain)
        x_grad = empty(tuple(x.shape), x) if needs_x else None
        weight_parts = empty((chunks, *weight.shape), weight) if needs_weight else None
        bias_parts = weight.new_empty(chunks, weight.shape[0]) if ctx.has_bias else None
        w = weight.detach().to(precision)
        rows, result = x.detach(), None if out is None else out.detach()

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
            g = g.to(precision)
            if x_grad is not None:
                multiply(g, w, x_grad[start:stop], precision=precision)
            if weight_parts is not None:
                multiply_turned(rows[start:stop], g, weight_parts[chunk], precision=precision)

        in_chunks(work, num, grain)
        return (
            x_grad,
            None if weight_parts is None else _sum(weight_parts),
            None if bias_parts is None else _sum(bias_parts),
            None,
            None,
        )


def _sum(parts: torch.Tensor) -> torch.Tensor:
    """The sum of the chunks' parts; of one, itself."""
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
        If the shapes or dtypes of x, weight and bias do not go together.
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
