"""The parts of attention, each an operator with an exact gradient: scores of edges, softmax, weighted sums.

`hyrt.nn.operators.attention.attend` does all of them in one pass over the edges, for a layer that needs
nothing of what is between them. A layer that does (other scores, edge features, dropout of weights) is made
of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.machine.workers import current_workers
from hyrt.nn.operators import kernels
from hyrt.nn.operators.result_memory import empty_array
from hyrt.sampling.block import Block

_GRAIN = 256


def _run(kernel: Callable[..., None], rows: int, *arguments: Any) -> None:
    """Run a kernel over rows, shared by the calling thread's team."""
    current_workers().run(lambda start, stop: kernel(*arguments, start, stop), rows, _GRAIN)


def _array(x: torch.Tensor) -> NDArray[Any]:
    array: NDArray[Any] = x.detach().contiguous().numpy()
    return array


def _check(block: Block, what: str, x: torch.Tensor, rows: int) -> None:
    if len(x) != rows or x.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"layer {block.layer}: {what} has shape {tuple(x.shape)} and is {x.dtype}: give {rows} rows of "
            "torch.float32 or torch.float64"
        )


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, at_source: torch.Tensor, at_destination: torch.Tensor, block: Block, slope: float
    ) -> torch.Tensor:
        source, destination = _array(at_source), _array(at_destination)
        out = empty_array((block.num_edges, source.shape[1]), source.dtype)
        factor = source.dtype.type(slope)
        ends = (block.indptr, block.columns, source, destination)
        _run(kernels.score_edges, block.num_dst, *ends, factor, out)
        ctx.block, ctx.slopes = block, np.where(out > 0, source.dtype.type(1), factor)
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        block: Block = ctx.block
        along = _array(grad) * ctx.slopes
        found: list[torch.Tensor | None] = [None, None]
        if ctx.needs_input_grad[0]:
            turned = block.transposed()
            out = empty_array((block.num_src, along.shape[1]), along.dtype)
            _run(kernels.sum_edges, block.num_src, turned.indptr, turned.edges, along, out)
            found[0] = torch.from_numpy(out)
        if ctx.needs_input_grad[1]:
            out = empty_array((block.num_dst, along.shape[1]), along.dtype)
            _run(kernels.sum_edges, block.num_dst, block.indptr, None, along, out)
            found[1] = torch.from_numpy(out)
        return (*found, None, None)


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, block: Block) -> torch.Tensor:
        rows = _array(scores)
        ctx.block, ctx.weights = block, empty_array(rows.shape, rows.dtype)
        _run(kernels.softmax_edges, block.num_dst, block.indptr, rows, ctx.weights)
        return torch.from_numpy(ctx.weights)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        out = empty_array(ctx.weights.shape, ctx.weights.dtype)
        edges = (ctx.block.indptr, ctx.weights, _array(grad))
        _run(kernels.softmax_edges_backward, ctx.block.num_dst, *edges, out)
        return torch.from_numpy(out), None


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weights: torch.Tensor, block: Block) -> torch.Tensor:
        rows, along = _array(x), _array(weights)
        out = empty_array((block.num_dst, along.shape[1], rows.shape[2]), rows.dtype)
        _run(kernels.sum_weighted, block.num_dst, block.indptr, block.columns, None, rows, along, out)
        ctx.block, ctx.rows, ctx.weights = block, rows, along
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        block: Block = ctx.block
        g = _array(grad)
        found: list[torch.Tensor | None] = [None, None]
        if ctx.needs_input_grad[0]:
            turned = block.transposed()
            out = empty_array(ctx.rows.shape, g.dtype)
            edges = (turned.indptr, turned.rows, turned.edges)
            _run(kernels.sum_weighted, block.num_src, *edges, g, ctx.weights, out)
            found[0] = torch.from_numpy(out)
        if ctx.needs_input_grad[1]:
            out = empty_array(ctx.weights.shape, g.dtype)
            _run(kernels.dot_edges, block.num_dst, block.indptr, block.columns, ctx.rows, g, out)
            found[1] = torch.from_numpy(out)
        return (*found, None)


def edge_scores(
    block: Block, at_source: torch.Tensor, at_destination: torch.Tensor, negative_slope: float = 0.2
) -> torch.Tensor:
    """Scores of edges j -> i from values at their ends: LeakyReLU(at_source[j] + at_destination[i]).

    Parameters
    ----------
    block
        A relabelled block.
    at_source, at_destination
        [num_src, H] and [num_dst, H] of one dtype, float32 or float64.
    negative_slope
        The positive slope of the LeakyReLU below zero.

    Returns
    -------
    [E, H], differentiable with respect to both.

    Raises
    ------
    ValueError
        If they have not one row a source and a destination, or are of another dtype.
    """
    _check(block, "at_source", at_source, block.num_src)
    _check(block, "at_destination", at_destination, block.num_dst)
    scores = _Scores.apply(at_source, at_destination, block, negative_slope)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, scores)


def edge_softmax(block: Block, scores: torch.Tensor) -> torch.Tensor:
    """Softmax of scores [E, H] over the edges of each destination, for each head; differentiable.

    Raises
    ------
    ValueError
        If there is not one row an edge, or of another dtype than float32 and float64.
    """
    _check(block, "scores", scores, block.num_edges)
    return cast(torch.Tensor, _Softmax.apply(scores, block))  # type: ignore[no-untyped-call]


def weighted_sum(block: Block, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Sums of source rows weighted by the edges.

    Parameters
    ----------
    block
        A relabelled block.
    x
        [num_src, f], or [num_src, H, f] with a slice for each head; float32 or float64.
    weights
        [E, H] of the same dtype.

    Returns
    -------
    [num_dst, H, f], differentiable with respect to x and the weights.

    Raises
    ------
    ValueError
        If x has not one row a source, the weights have not one row an edge, or they are of another dtype.
    """
    _check(block, "x", x, block.num_src)
    _check(block, "weights", weights, block.num_edges)
    rows = x[:, None] if x.ndim == 2 else x
    return cast(torch.Tensor, _WeightedSum.apply(rows, weights, block))  # type: ignore[no-untyped-call]
