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


class _Stacked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, low_precision: bool, *tensors: torch.Tensor | None) -> torch.Tensor:
        num = len(tensors) // 3
        rows = [cast(torch.Tensor, each) for each in tensors[:num]]
        weights = [cast(torch.Tensor, each) for each in tensors[num : 2 * num]]
        biases = tensors[2 * num :]
        starts = np.cumsum([0, *(len(each) for each in rows)]).tolist()
        out = empty((starts[-1], len(weights[0])), rows[0])
        precision = torch.bfloat16 if low_precision else out.dtype
        turned = [weight.detach().to(precision).t() for weight in weights]
        added = [None if bias is None else bias.detach().to(precision) for bias in biases]
        # Detached: otherwise autograd would record the operations of the team's threads.
        plain = [each.detach() for each in rows]
        chunks = _chunks(rows)

        def work(first: int, last: int) -> None:
            for part, start, stop in chunks[first:last]:
                at = starts[part]
                result = out[at + start : at + stop]
                multiply(plain[part][start:stop], turned[part], result, precision=precision, bias=added[part])

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
        of_rows = [empty(tuple(x.shape), grad) if needs[k] else None for k, x in enumerate(rows)]
        counts = np.bincount([part for part, _, _ in chunks], minlength=num).tolist()
        of_weights = [
            empty((counts[k], *weight.shape), grad) if needs[num + k] else None
            for k, weight in enumerate(weights)
        ]
        of_biases = [
            grad.new_empty(counts[k], len(weights[k])) if has else None for k, has in enumerate(ctx.has_bias)
        ]
        plain = [each.detach() for each in rows]
        by = [weight.detach().to(precision) for weight in weights]

        def work(first: int, last: int) -> None:
            for part, start, stop in chunks[first:last]:
                at, number = ctx.starts[part], start // GRAIN
                g = grad[at + start : at + stop]
                sums, into, products = of_biases[part], of_rows[part], of_weights[part]
                if sums is not None:
                    torch.sum(g, 0, out=sums[number])
                g = g.to(precision)
                if into is not None:
                    multiply(g, by[part], into[start:stop], precision=precision)
                if products is not None:
                    multiply_turned(plain[part][start:stop], g, products[number], precision=precision)

        in_chunks(work, len(chunks), 1)
        totals = [
            [None if part is None else part.sum(0) for part in each] for each in (of_weights, of_biases)
        ]
        return None, *of_rows, *totals[0], *totals[1]


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
    return cast(torch.Tensor, _Stacked.apply(low_precision, *rows, *weights, *biases))  # type: ignore[no-untyped-call]
