"""Products of several groups of rows, each with a separate weight, stacked in one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from hyrt.nn.operators.chunk_product import in_chunks, multiply, multiply_turned
from hyrt.nn.operators.first_derivative import first_derivative
from hyrt.nn.operators.product import GRAIN, linear
from hyrt.nn.operators.result_memory import empty

Part = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
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
        # Detached: otherwise autograd would record the operations of the team's threads.
        detached_rows = [tensor.detach() for tensor in rows]
        chunks = _chunks(rows)

        def work(first: int, last: int) -> None:
            for part, start, stop in chunks[first:last]:
                offset = starts[part]
                result = out[offset + start : offset + stop]
                multiply(
                    detached_rows[part][start:stop],
                    transposed_weights[part],
                    result,
                    precision=precision,
                    bias=cast_biases[part],
                )

        in_chunks(work, len(chunks), 1)
        ctx.save_for_backward(*rows, *weights)
        ctx.has_bias = [bias is not None for bias in biases]
        ctx.starts, ctx.precision, ctx.chunks = starts, precision, chunks
        return out

    @staticmethod
    @first_derivative
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
                    multiply(g, cast_weights[part], row_grad[start:stop], precision=precision)
                if products is not None:
                    multiply_turned(detached_rows[part][start:stop], g, products[number], precision=precision)

        in_chunks(work, len(chunks), 1)
        totals = [
            [None if part is None else part.sum(0) for part in tensor]
            for tensor in (weight_grads, bias_grads)
        ]
        return None, *row_grads, *totals[0], *totals[1]


def _chunks(rows: Sequence[torch.Tensor]) -> list[tuple[int, int, int]]:
    """Return part, start and stop of each chunk; they do not depend on the number of threads."""
    return [
        (part, start, min(start + GRAIN, len(x)))
        for part, x in enumerate(rows)
        for start in range(0, len(x), GRAIN)
    ]


def stacked_products(parts: Sequence[Part], *, low_precision: bool = False) -> torch.Tensor:
    """Multiply each part's rows by its weight, and stack the results; parts may be empty.

    Parameters
    ----------
    parts
        At least one, all with results of the same width.
    low_precision
        Multiply in bfloat16.

    Returns
    -------
    [sum of n, out]; differentiable.
    """
    if parts[0][0].device.type != "cpu":
        return torch.cat([linear(*part, low_precision=low_precision) for part in parts])
    rows, weights, biases = zip(*parts, strict=True)
    return cast(torch.Tensor, _GroupedLinear.apply(low_precision, *rows, *weights, *biases))  # type: ignore[no-untyped-call]
