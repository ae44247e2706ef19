"""Linear layers over tall matrices, with one weight for all rows or one per group of rows.

Rows are multiplied in chunks that fit into the cache.
"""

# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from hyrt.nn.operators.autograd import empty, once_differentiable
from hyrt.nn.operators.blocked_matmul import matmul, matmul_transposed, run_in_chunks
from hyrt.nn.operators.tensor_ops import linear_tensors
from hyrt.runtime.numba_cache import nb

# Number of rows that are summed before they are added to the total, which limits the rounding error.
_ROWS = 32


@nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False, fastmath={"contract", "nsz"})
def relu_backward(grad, result, out, sums):
    """Write `grad` [n, k] masked by `result` > 0 to `out`, and the column sums of `out` to `sums` [k]."""
    rows, width = grad.shape
    partial = np.empty(width, grad.dtype)
    sums[:] = 0
    for first in range(0, rows, _ROWS):
        partial[:] = 0
        for i in range(first, min(first + _ROWS, rows)):
            for k in range(width):
                # The comparison is chosen such that a NaN stays a NaN.
                value = grad[i, k] if not result[i, k] <= 0 else grad.dtype.type(0)
                out[i, k] = value
                partial[k] += value
        for k in range(width):
            sums[k] += partial[k]


# Minimum number of rows per chunk, and maximum number of elements in a chunk with more rows.
GRAIN = 1024
_NUMBERS = 1 << 18


def _grain(rows: int, columns: int) -> int:
    """Return the rows per chunk, which are more for short rows to amortize the cost of a library call."""
    fitting = max(1, _NUMBERS // max(1, rows + columns))
    return max(GRAIN, 1 << fitting.bit_length() - 1)


def linear_forward(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    precision: torch.dtype,
    relu: bool = False,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `linear` in dtype `precision` without autograd, into `out` [n, out] or a new tensor."""
    # Calling `len` on a tensor would take ten times as long.
    num = x.shape[0]
    out = empty((num, weight.shape[0]), x) if out is None else out
    if precision != x.dtype:
        weight, bias = weight.to(precision), None if bias is None else bias.to(precision)
    transposed = weight.t()

    def work(start: int, stop: int) -> None:
        matmul(x[start:stop], transposed, out[start:stop], precision=precision, bias=bias, relu=relu)

    run_in_chunks(work, num, _grain(*weight.shape))
    return out


def linear_backward(
    x: torch.Tensor,
    weight: torch.Tensor,
    grad: torch.Tensor,
    *,
    precision: torch.dtype,
    result: torch.Tensor | None = None,
    x_grad: torch.Tensor | None = None,
    accumulate: bool = False,
    needs_weight: bool = True,
    needs_bias: bool = True,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Compute the gradients of `linear_forward` for a C-contiguous `grad` [n, out], without autograd.

    `result` is the forward result if it had a ReLU, otherwise None. `x_grad` [n, in] receives the gradient of
    x unless it is None; if `accumulate`, the gradient is added to it. Returns the gradients of weight and
    bias; None for a gradient that is not needed.
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
            relu_backward(*(t.numpy() for t in (g, result[start:stop], masked, sums)))
            g = masked
        elif sums is not None:
            torch.sum(g, 0, out=sums)
        g = g if g.dtype == precision else g.to(precision)
        if x_grad is not None:
            matmul(g, w, x_grad[start:stop], precision=precision, accumulate=accumulate)
        if weight_parts is not None:
            matmul_transposed(x[start:stop], g, weight_parts[chunk], precision=precision)

    run_in_chunks(work, num, grain)
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
        # Detach the tensors: otherwise autograd would record operations of the team's threads.
        factors = x.detach(), weight.detach(), None if bias is None else bias.detach()
        out = linear_forward(*factors, precision=ctx.precision, relu=relu)
        ctx.save_for_backward(x, weight, out if relu else None)
        ctx.has_bias = bias is not None
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        needs_x, needs_weight = ctx.needs_input_grad[:2]
        x_grad = empty(tuple(x.shape), x) if needs_x else None
        weight_grad, bias_grad = linear_backward(
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
    """Return the sum of the chunks' partial gradients. A single one is not copied."""
    return parts[0] if parts.shape[0] == 1 else parts.sum(0)


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    relu: bool = False,
    low_precision: bool = False,
) -> torch.Tensor:
    """Multiply rows by a transposed weight and add a bias, optionally followed by a ReLU; differentiable.

    Parameters
    ----------
    x
        Rows [n, in], float32 or float64.
    weight
        Weight [out, in].
    bias
        Bias [out], or None.
    relu
        Whether to apply a ReLU to the result.
    low_precision
        Whether to multiply in bfloat16 and sum products in float32. Weights, gradients and results keep their
        dtype.

    Returns
    -------
    Rows [n, out].

    Raises
    ------
    ValueError
        If the shapes or dtypes of x, weight and bias do not match.
    """
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(
            f"x has shape {tuple(x.shape)} and the weight has shape {tuple(weight.shape)}: pass x as [n, "
            "in] and the weight as [out, in]"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"the bias has shape {tuple(bias.shape)}, but the weight has {len(weight)} rows: pass a bias of "
            f"shape [{len(weight)}]"
        )
    if x.dtype != weight.dtype or (bias is not None and bias.dtype != weight.dtype):
        raise ValueError(
            f"x is {x.dtype}, the weight {weight.dtype} and the bias "
            f"{None if bias is None else bias.dtype}: use the same dtype for all"
        )
    if x.device.type != "cpu":
        return linear_tensors(x, weight, bias, relu=relu, low_precision=low_precision)
    return cast(torch.Tensor, _Linear.apply(x, weight, bias, relu, low_precision))  # type: ignore[no-untyped-call]


LinearGroup = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""Rows [n, in], a weight [out, in], and a bias [out] or None."""


class _GroupedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, low_precision: bool, *tensors: torch.Tensor | None) -> torch.Tensor:
        num = len(tensors) // 3
        rows = [cast(torch.Tensor, tensor) for tensor in tensors[:num]]
        weights = [cast(torch.Tensor, tensor) for tensor in tensors[num : 2 * num]]
        biases = tensors[2 * num :]
        starts = np.cumsum([0, *(len(tensor) for tensor in rows)]).tolist()
        out = empty((starts[-1], len(weights[0])), rows[0])
        precision = torch.bfloat16 if low_precision else out.dtype
        transposed_weights = [weight.detach().to(precision).t() for weight in weights]
        cast_biases = [None if bias is None else bias.detach().to(precision) for bias in biases]
        # Detach the tensors: otherwise autograd would record operations of the team's threads.
        detached_rows = [tensor.detach() for tensor in rows]
        chunks = _chunks(rows)

        def work(first: int, last: int) -> None:
            for part, start, stop in chunks[first:last]:
                offset = starts[part]
                result = out[offset + start : offset + stop]
                matmul(
                    detached_rows[part][start:stop],
                    transposed_weights[part],
                    result,
                    precision=precision,
                    bias=cast_biases[part],
                )

        run_in_chunks(work, len(chunks), 1)
        ctx.save_for_backward(*rows, *weights)
        ctx.has_bias = [bias is not None for bias in biases]
        ctx.starts, ctx.precision, ctx.chunks = starts, precision, chunks
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        num = len(ctx.has_bias)
        rows, weights = ctx.saved_tensors[:num], ctx.saved_tensors[num:]
        grad, precision, chunks = grad.detach().contiguous(), ctx.precision, ctx.chunks
        needs = ctx.needs_input_grad[1:]
        row_grads = [empty(tuple(x.shape), grad) if needs[k] else None for k, x in enumerate(rows)]
        counts = np.bincount([part for part, _, _ in chunks], minlength=num).tolist()
        weight_grads = [
            empty((counts[k], *weight.shape), grad) if needs[num + k] else None
            for k, weight in enumerate(weights)
        ]
        bias_grads = [
            grad.new_empty(counts[k], len(weights[k])) if has else None for k, has in enumerate(ctx.has_bias)
        ]
        detached_rows = [tensor.detach() for tensor in rows]
        cast_weights = [weight.detach().to(precision) for weight in weights]

        def work(first: int, last: int) -> None:
            for part, start, stop in chunks[first:last]:
                offset, number = ctx.starts[part], start // GRAIN
                g = grad[offset + start : offset + stop]
                sums, row_grad, products = bias_grads[part], row_grads[part], weight_grads[part]
                if sums is not None:
                    torch.sum(g, 0, out=sums[number])
                g = g.to(precision)
                if row_grad is not None:
                    matmul(g, cast_weights[part], row_grad[start:stop], precision=precision)
                if products is not None:
                    matmul_transposed(
                        detached_rows[part][start:stop], g, products[number], precision=precision
                    )

        run_in_chunks(work, len(chunks), 1)
        totals = [
            [None if part is None else part.sum(0) for part in tensor]
            for tensor in (weight_grads, bias_grads)
        ]
        return None, *row_grads, *totals[0], *totals[1]


def _chunks(rows: Sequence[torch.Tensor]) -> list[tuple[int, int, int]]:
    """Return part, start and stop of each chunk, which do not depend on the number of threads."""
    return [
        (part, start, min(start + GRAIN, len(x)))
        for part, x in enumerate(rows)
        for start in range(0, len(x), GRAIN)
    ]


def grouped_linear(parts: Sequence[LinearGroup], *, low_precision: bool = False) -> torch.Tensor:
    """Multiply the rows of each part by its weight; return all results as [sum of n, out], differentiably.

    There must be at least one part, but parts may have no rows. All results have the same width. If
    `low_precision`, products are computed in bfloat16.
    """
    if parts[0][0].device.type != "cpu":
        return torch.cat([linear(*part, low_precision=low_precision) for part in parts])
    rows, weights, biases = zip(*parts, strict=True)
    return cast(torch.Tensor, _GroupedLinear.apply(low_precision, *rows, *weights, *biases))  # type: ignore[no-untyped-call]
