"""Scores, softmax and weighted sums along the edges of segments, each with its exact gradient.

A segment is the edges of one relation into one destination (`hyrt.sampling.relations.relation_split`). Scores
have one row per edge and one column per head; rows of vertices are shared by all edges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.machine.workers import current_workers
from hyrt.nn.operators.first_derivative import first_derivative
from hyrt.nn.operators.result_memory import empty
from hyrt.nn.tensor_operators.segments import (
    from_destinations,
    from_sources,
    segment_max,
    to_destinations,
)
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.nn.typed.attention.run_kernels import (
    add_pairs,
    dots_with_gradient,
    segment_dots,
    segment_softmax,
    segment_softmax_backward,
    sum_per_source,
    sum_segments,
    sum_weighted,
    sum_weighted_backward,
)
from hyrt.sampling.block import Block
from hyrt.sampling.relations.relation_split import RelationSplit

_GRAIN = 512

Kernel = Callable[..., None]


def _array(x: torch.Tensor) -> NDArray[Any]:
    values: NDArray[Any] = x.detach().contiguous().numpy()
    return values


def _over_runs(kernel: Kernel, block: Block, *arrays: Any) -> None:
    """Call a kernel for chunks of the segments of a block."""
    edges = (block.indptr, block.columns)
    current_workers().run(lambda start, stop: kernel(*edges, *arrays, start, stop), block.num_dst, _GRAIN)


def _over_sources(kernel: Kernel, block: Block, *arrays: Any) -> None:
    """Call a kernel for chunks of the sources of a block."""
    turned = block.transposed()
    edges = (turned.indptr, turned.rows, turned.edges)
    current_workers().run(lambda start, stop: kernel(*edges, *arrays, start, stop), block.num_src, 2 * _GRAIN)


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, block: Block) -> torch.Tensor:
        arrays = _array(q), _array(k)
        out = empty((block.num_edges, q.shape[1]), q)
        _over_runs(segment_dots, block, *arrays, out.numpy())
        ctx.block, ctx.arrays = block, arrays
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k = ctx.arrays
        weights = _array(grad)
        of_q, of_k = empty(q.shape, grad), None
        _over_runs(sum_weighted, ctx.block, weights, k, of_q.numpy())
        if ctx.needs_input_grad[1]:
            of_k = empty(k.shape, grad)
            _over_sources(sum_weighted_backward, ctx.block, weights, q, of_k.numpy())
        return of_q, of_k, None


class _WeightedSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: torch.Tensor, x: torch.Tensor, block: Block) -> torch.Tensor:
        arrays = _array(weights), _array(x)
        out = empty((block.num_dst, weights.shape[1], x.shape[2]), x)
        _over_runs(sum_weighted, block, *arrays, out.numpy())
        ctx.block, ctx.arrays = block, arrays
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weights, x = ctx.arrays
        g = _array(grad)
        of_weights, of_x = empty(weights.shape, grad), None
        _over_runs(dots_with_gradient, ctx.block, g, x, of_weights.numpy())
        if ctx.needs_input_grad[1]:
            of_x = empty(x.shape, grad)
            _over_sources(sum_weighted_backward, ctx.block, weights, g, of_x.numpy())
        return of_weights, of_x, None


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, of_runs: torch.Tensor, of_sources: torch.Tensor, at: NDArray[np.int32], block: Block
    ) -> torch.Tensor:
        out = empty((block.num_edges, of_runs.shape[1]), of_runs)
        _over_runs(add_pairs, block, at, _array(of_runs), _array(of_sources), out.numpy())
        ctx.block, ctx.at, ctx.shapes = block, at, (tuple(of_runs.shape), tuple(of_sources.shape))
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, block = _array(grad), ctx.block
        of_runs, of_sources = (empty(shape, grad) for shape in ctx.shapes)
        indptr, result = block.indptr, of_runs.numpy()
        current_workers().run(
            lambda start, stop: sum_segments(indptr, values, result, start, stop), block.num_dst, _GRAIN
        )
        _over_sources(sum_per_source, block, ctx.at, values, of_sources.numpy())
        return of_runs, of_sources, None, None


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, segments: tuple[NDArray[Any], ...]) -> torch.Tensor:
        out = empty(scores.shape, scores)
        _over_rows(segment_softmax, segments, _array(scores), out.numpy())
        ctx.segments, ctx.weights = segments, out.numpy()
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        out = empty(grad.shape, grad)
        _over_rows(segment_softmax_backward, ctx.segments, ctx.weights, _array(grad), out.numpy())
        return out, None


def _over_rows(kernel: Kernel, segments: tuple[NDArray[Any], ...], *arrays: Any) -> None:
    current_workers().run(
        lambda start, stop: kernel(*segments, *arrays, start, stop), len(segments[0]) - 1, _GRAIN
    )


def edge_dots(split: RelationSplit, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Compute [E, H] dot products of each edge's segment and source.

    Parameters
    ----------
    split
        A block's edges by relation.
    q, k
        [P, H, d] rows of segments, and [num_src, H, d] rows of sources.
    """
    runs = split.runs
    if isinstance(runs, TensorBlock):
        return (from_destinations(runs, q) * from_sources(runs, k)).sum(2)
    return cast(torch.Tensor, _Dots.apply(q, k, runs))  # type: ignore[no-untyped-call]


def edge_sums(split: RelationSplit, of_runs: torch.Tensor, of_sources: torch.Tensor) -> torch.Tensor:
    """Compute [E, H] sums of a score of each edge's segment and the source's score for the relation.

    Parameters
    ----------
    split
        A block's edges by relation.
    of_runs, of_sources
        [P, H], and [num_src, R * H].
    """
    runs, heads = split.runs, of_runs.shape[1]
    if isinstance(runs, TensorBlock):
        by_relation = [
            from_sources(runs, of_sources[:, r * heads : (r + 1) * heads].contiguous())[start:stop]
            for r in split.present
            for start, stop in [split.edge_starts[r : r + 2]]
        ]
        along = torch.cat(by_relation) if by_relation else of_runs.new_zeros((0, heads))
        return from_destinations(runs, of_runs) + along
    at = np.repeat(np.arange(len(split.sizes), dtype=np.int32) * heads, split.sizes)
    return cast(torch.Tensor, _PairSums.apply(of_runs, of_sources, at, runs))  # type: ignore[no-untyped-call]


def softmax_of_runs(split: RelationSplit, scores: torch.Tensor) -> torch.Tensor:
    """Compute the [E, H] softmax of scores over the edges of each segment."""
    runs = split.runs
    if isinstance(runs, TensorBlock):
        return _softmax_tensors(scores, [runs])
    alone = np.arange(runs.num_dst + 1, dtype=runs.indptr.dtype)
    return _softmax(scores, (alone, alone[:-1], runs.indptr))


def softmax_of_destinations(split: RelationSplit, scores: torch.Tensor) -> torch.Tensor:
    """Compute the [E, H] softmax of scores over all edges of each destination."""
    runs, sums = split.runs, split.sums
    if isinstance(runs, TensorBlock):
        return _softmax_tensors(scores, [runs, sums])
    return _softmax(scores, (sums.indptr, sums.columns, runs.indptr))


def _softmax(scores: torch.Tensor, segments: tuple[NDArray[Any], ...]) -> torch.Tensor:
    return cast(torch.Tensor, _Softmax.apply(scores, segments))  # type: ignore[no-untyped-call]


def _softmax_tensors(scores: torch.Tensor, steps: list[TensorBlock]) -> torch.Tensor:
    """Compute the softmax in one step (over segments) or two (over the segments of a destination)."""
    with torch.no_grad():
        # A constant of the softmax: it changes no value and needs no gradient.
        top = segment_max(scores, steps[0].indptr)[0]
        if len(steps) > 1:
            best = segment_max(top.index_select(0, steps[1].columns.long()), steps[1].indptr)[0]
            top = best.index_select(0, steps[1].sources.long())
        top = from_destinations(steps[0], top)
    weights = (scores - top).exp()
    total = to_destinations(steps[0], weights)
    if len(steps) > 1:
        summed = to_destinations(steps[1], from_sources(steps[1], total))
        total = from_rows(summed, steps[1])
    return weights / from_destinations(steps[0], total)


def from_rows(x: torch.Tensor, sums: TensorBlock) -> torch.Tensor:
    """Return each segment's row of x [num_dst, ...] as [P, ...]; differentiable without atomics."""
    spread = from_destinations(sums, x)
    # In `sums.columns` the segments of a destination are adjacent.
    back = torch.empty_like(sums.columns.long())
    back[sums.columns.long()] = torch.arange(len(back), device=back.device)
    from hyrt.nn.typed.permuted_rows import permuted

    return permuted(spread, back, sums.columns.long())


def weighted_sums(split: RelationSplit, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sum source rows over the edges of each segment, weighted per head, as [P, H, w].

    Parameters
    ----------
    split
        A block's edges by relation.
    weights
        [E, H].
    x
        [num_src, H, w], or [num_src, 1, w] if heads share rows.
    """
    runs = split.runs
    if isinstance(runs, TensorBlock):
        return to_destinations(runs, weights[:, :, None] * from_sources(runs, x))
    return cast(torch.Tensor, _WeightedSums.apply(weights, x, runs))  # type: ignore[no-untyped-call]


def rows_of_runs(split: RelationSplit, x: torch.Tensor) -> torch.Tensor:
    """Return each segment's row of its destination in x [num_dst, w], as [P, w]; differentiable."""
    sums = split.sums
    if isinstance(sums, TensorBlock):
        return from_rows(x, sums)
    return cast(torch.Tensor, _OfRuns.apply(x, split))  # type: ignore[no-untyped-call]


class _OfRuns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, split: RelationSplit) -> torch.Tensor:
        from hyrt.nn.typed.permuted_rows import take_rows

        ctx.split, ctx.shape = split, x.shape
        return take_rows(x, split.rows)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        from hyrt.nn.aggregation import Aggregation
        from hyrt.nn.operators.aggregate import aggregate_into

        out = empty(tuple(ctx.shape), grad)
        aggregate_into(Aggregation("sum", "none"), ctx.split.sums, _array(grad), out.numpy())
        return out, None
