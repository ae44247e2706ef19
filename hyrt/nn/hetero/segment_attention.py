"""Scores, softmax and weighted sums over segments, with compiled loops and exact gradients.

A segment has the edges of one relation into one destination.
"""

# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.nn.operators.autograd import empty, once_differentiable
from hyrt.nn.operators.tensor_ops import (
    TensorBlock,
    gather_destinations,
    gather_sources,
    scatter_to_destinations,
    segment_max,
)
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.workers import current_workers
from hyrt.sampling.block import Block, RelationSplit

_compile = nb.njit(
    nogil=True,
    cache=True,
    error_model="numpy",
    boundscheck=False,
    fastmath={"contract", "reassoc", "nsz"},
)


@_compile
def segment_dots(indptr, columns, q, k, out, start, stop):
    """Compute out[e, h] = q[p, h] . k[columns[e], h] for segments start:stop ([P, H, d] and [S, H, d])."""
    heads, width = q.shape[1], q.shape[2]
    for p in range(start, stop):
        for e in range(indptr[p], indptr[p + 1]):
            row = k[columns[e]]
            for h in range(heads):
                total = out.dtype.type(0)
                for i in range(width):
                    total += q[p, h, i] * row[h, i]
                out[e, h] = total


@_compile
def sum_weighted(indptr, columns, weights, x, out, start, stop):
    """Compute out[p, h] = sum_e weights[e, h] x[columns[e], h] for segments start:stop.

    If x has one slice, all heads read it.
    """
    heads, width = out.shape[1], out.shape[2]
    shared = x.shape[1] == 1
    for p in range(start, stop):
        for h in range(heads):
            for i in range(width):
                out[p, h, i] = 0
        for e in range(indptr[p], indptr[p + 1]):
            row = x[columns[e]]
            for h in range(heads):
                a = row[0] if shared else row[h]
                weight = weights[e, h]
                for i in range(width):
                    out[p, h, i] += weight * a[i]


@_compile
def sum_weighted_backward(t_indptr, t_segments, t_edges, weights, grad, out, start, stop):
    """Compute the transpose of `sum_weighted` for sources start:stop.

    out[j, h] = sum_e weights[e, h] grad[segment of e, h]. If heads share source rows, the results are added.
    """
    heads, width = grad.shape[1], grad.shape[2]
    shared = out.shape[1] == 1
    for j in range(start, stop):
        for h in range(out.shape[1]):
            for i in range(width):
                out[j, h, i] = 0
        for t in range(t_indptr[j], t_indptr[j + 1]):
            e, g = t_edges[t], grad[t_segments[t]]
            for h in range(heads):
                o = out[j, 0] if shared else out[j, h]
                weight = weights[e, h]
                for i in range(width):
                    o[i] += weight * g[h, i]


@_compile
def dots_with_gradient(indptr, columns, grad, x, out, start, stop):
    """Compute out[e, h] = grad[p, h] . x[columns[e], h] for segments start:stop; heads may share x."""
    heads, width = grad.shape[1], grad.shape[2]
    shared = x.shape[1] == 1
    for p in range(start, stop):
        for e in range(indptr[p], indptr[p + 1]):
            row = x[columns[e]]
            for h in range(heads):
                a = row[0] if shared else row[h]
                total = out.dtype.type(0)
                for i in range(width):
                    total += grad[p, h, i] * a[i]
                out[e, h] = total


@_compile
def add_pairs(indptr, columns, first_columns, segment_scores, source_scores, out, start, stop):
    """Compute out[e, h] = segment_scores[p, h] + source_scores[columns[e], first_columns[p] + h]."""
    heads = segment_scores.shape[1]
    for p in range(start, stop):
        for e in range(indptr[p], indptr[p + 1]):
            row = source_scores[columns[e]]
            for h in range(heads):
                out[e, h] = segment_scores[p, h] + row[first_columns[p] + h]


@_compile
def sum_segments(indptr, values, out, start, stop):
    """Compute out[p, h] = sum_e values[e, h] for segments start:stop."""
    for p in range(start, stop):
        for h in range(out.shape[1]):
            out[p, h] = 0
        for e in range(indptr[p], indptr[p + 1]):
            for h in range(out.shape[1]):
                out[p, h] += values[e, h]


@_compile
def sum_per_source(t_indptr, t_segments, t_edges, first_columns, values, out, start, stop):
    """Compute out[j, first_columns[p] + h] = sum_e values[e, h] over the edges e in segments p."""
    for j in range(start, stop):
        for c in range(out.shape[1]):
            out[j, c] = 0
        for t in range(t_indptr[j], t_indptr[j + 1]):
            first = first_columns[t_segments[t]]
            for h in range(values.shape[1]):
                out[j, first + h] += values[t_edges[t], h]


@_compile
def segment_softmax(row_indptr, row_segments, segment_indptr, scores, out, start, stop):
    """Compute the softmax of scores [E, H] over the edges in all segments of rows start:stop."""
    heads = scores.shape[1]
    for i in range(start, stop):
        for h in range(heads):
            top = -np.inf
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = row_segments[r]
                for e in range(segment_indptr[p], segment_indptr[p + 1]):
                    top = max(top, scores[e, h])
            total = scores.dtype.type(0)
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = row_segments[r]
                for e in range(segment_indptr[p], segment_indptr[p + 1]):
                    out[e, h] = np.exp(scores[e, h] - top)
                    total += out[e, h]
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = row_segments[r]
                for e in range(segment_indptr[p], segment_indptr[p + 1]):
                    out[e, h] /= total


@_compile
def segment_softmax_backward(row_indptr, row_segments, segment_indptr, weights, grad, out, start, stop):
    """Compute the gradient of `segment_softmax` with respect to the scores."""
    heads = weights.shape[1]
    for i in range(start, stop):
        for h in range(heads):
            mean = weights.dtype.type(0)
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = row_segments[r]
                for e in range(segment_indptr[p], segment_indptr[p + 1]):
                    mean += weights[e, h] * grad[e, h]
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = row_segments[r]
                for e in range(segment_indptr[p], segment_indptr[p + 1]):
                    out[e, h] = weights[e, h] * (grad[e, h] - mean)


_GRAIN = 512

Kernel = Callable[..., None]


def _array(x: torch.Tensor) -> NDArray[Any]:
    values: NDArray[Any] = x.detach().contiguous().numpy()
    return values


def _run_over_segments(kernel: Kernel, block: Block, *arrays: Any) -> None:
    """Call a kernel for chunks of a block's segments."""
    edges = (block.indptr, block.columns)
    current_workers().run(lambda start, stop: kernel(*edges, *arrays, start, stop), block.num_dst, _GRAIN)


def _run_over_sources(kernel: Kernel, block: Block, *arrays: Any) -> None:
    """Call a kernel for chunks of a block's sources."""
    transposed = block.transposed()
    edges = (transposed.indptr, transposed.rows, transposed.edges)
    current_workers().run(lambda start, stop: kernel(*edges, *arrays, start, stop), block.num_src, 2 * _GRAIN)


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, block: Block) -> torch.Tensor:
        arrays = _array(q), _array(k)
        out = empty((block.num_edges, q.shape[1]), q)
        _run_over_segments(segment_dots, block, *arrays, out.numpy())
        ctx.block, ctx.arrays = block, arrays
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k = ctx.arrays
        weights = _array(grad)
        q_grad, k_grad = empty(q.shape, grad), None
        _run_over_segments(sum_weighted, ctx.block, weights, k, q_grad.numpy())
        if ctx.needs_input_grad[1]:
            k_grad = empty(k.shape, grad)
            _run_over_sources(sum_weighted_backward, ctx.block, weights, q, k_grad.numpy())
        return q_grad, k_grad, None


class _WeightedSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: torch.Tensor, x: torch.Tensor, block: Block) -> torch.Tensor:
        arrays = _array(weights), _array(x)
        out = empty((block.num_dst, weights.shape[1], x.shape[2]), x)
        _run_over_segments(sum_weighted, block, *arrays, out.numpy())
        ctx.block, ctx.arrays = block, arrays
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weights, x = ctx.arrays
        g = _array(grad)
        weights_grad, x_grad = empty(weights.shape, grad), None
        _run_over_segments(dots_with_gradient, ctx.block, g, x, weights_grad.numpy())
        if ctx.needs_input_grad[1]:
            x_grad = empty(x.shape, grad)
            _run_over_sources(sum_weighted_backward, ctx.block, weights, g, x_grad.numpy())
        return weights_grad, x_grad, None


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        segment_scores: torch.Tensor,
        source_scores: torch.Tensor,
        first_columns: NDArray[np.int32],
        block: Block,
    ) -> torch.Tensor:
        out = empty((block.num_edges, segment_scores.shape[1]), segment_scores)
        _run_over_segments(
            add_pairs, block, first_columns, _array(segment_scores), _array(source_scores), out.numpy()
        )
        ctx.block, ctx.first_columns = block, first_columns
        ctx.shapes = tuple(segment_scores.shape), tuple(source_scores.shape)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, block = _array(grad), ctx.block
        segment_scores, source_scores = (empty(shape, grad) for shape in ctx.shapes)
        indptr, result = block.indptr, segment_scores.numpy()
        current_workers().run(
            lambda start, stop: sum_segments(indptr, values, result, start, stop), block.num_dst, _GRAIN
        )
        _run_over_sources(sum_per_source, block, ctx.first_columns, values, source_scores.numpy())
        return segment_scores, source_scores, None, None


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, segments: tuple[NDArray[Any], ...]) -> torch.Tensor:
        out = empty(scores.shape, scores)
        _run_over_rows(segment_softmax, segments, _array(scores), out.numpy())
        ctx.segments, ctx.weights = segments, out.numpy()
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        out = empty(grad.shape, grad)
        _run_over_rows(segment_softmax_backward, ctx.segments, ctx.weights, _array(grad), out.numpy())
        return out, None


def _run_over_rows(kernel: Kernel, segments: tuple[NDArray[Any], ...], *arrays: Any) -> None:
    current_workers().run(
        lambda start, stop: kernel(*segments, *arrays, start, stop), len(segments[0]) - 1, _GRAIN
    )


def dot_edges(split: RelationSplit, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Compute the dot product [E, H] of each edge's segment row in `q` and its source row in `k`.

    `q` is [P, H, d], and `k` is [num_src, H, d].
    """
    runs = split.runs
    if isinstance(runs, TensorBlock):
        return (gather_destinations(runs, q) * gather_sources(runs, k)).sum(2)
    return cast(torch.Tensor, _Dots.apply(q, k, runs))  # type: ignore[no-untyped-call]


def add_edge_scores(
    split: RelationSplit, segment_scores: torch.Tensor, source_scores: torch.Tensor
) -> torch.Tensor:
    """Add the score of each edge's segment to its source's score in the segment's relation, as [E, H].

    `segment_scores` is [P, H], and `source_scores` is [num_src, R * H].
    """
    runs, heads = split.runs, segment_scores.shape[1]
    if isinstance(runs, TensorBlock):
        relation_scores = [
            gather_sources(runs, source_scores[:, r * heads : (r + 1) * heads].contiguous())[start:stop]
            for r in split.present_relations
            for start, stop in [split.edge_starts[r : r + 2]]
        ]
        edge_values = torch.cat(relation_scores) if relation_scores else segment_scores.new_zeros((0, heads))
        return gather_destinations(runs, segment_scores) + edge_values
    first_columns = np.repeat(np.arange(len(split.sizes), dtype=np.int32) * heads, split.sizes)
    return cast(torch.Tensor, _PairSums.apply(segment_scores, source_scores, first_columns, runs))  # type: ignore[no-untyped-call]


def softmax_per_segment(split: RelationSplit, scores: torch.Tensor) -> torch.Tensor:
    """Compute the softmax [E, H] of scores over the edges of each segment."""
    runs = split.runs
    if isinstance(runs, TensorBlock):
        return _softmax_tensors(scores, [runs])
    single_segments = np.arange(runs.num_dst + 1, dtype=runs.indptr.dtype)
    return _softmax(scores, (single_segments, single_segments[:-1], runs.indptr))


def softmax_per_destination(split: RelationSplit, scores: torch.Tensor) -> torch.Tensor:
    """Compute the softmax [E, H] of scores over all edges of each destination."""
    runs, sums = split.runs, split.sums
    if isinstance(runs, TensorBlock):
        return _softmax_tensors(scores, [runs, sums])
    return _softmax(scores, (sums.indptr, sums.columns, runs.indptr))


def _softmax(scores: torch.Tensor, segments: tuple[NDArray[Any], ...]) -> torch.Tensor:
    return cast(torch.Tensor, _Softmax.apply(scores, segments))  # type: ignore[no-untyped-call]


def _softmax_tensors(scores: torch.Tensor, steps: list[TensorBlock]) -> torch.Tensor:
    """Compute the softmax in one step (per segment) or in two (over the segments of each destination)."""
    with torch.no_grad():
        # Subtracting the maximum does not change the softmax, so the maximum needs no gradient.
        top = segment_max(scores, steps[0].indptr)[0]
        if len(steps) > 1:
            best = segment_max(top.index_select(0, steps[1].columns.long()), steps[1].indptr)[0]
            top = best.index_select(0, steps[1].sources.long())
        top = gather_destinations(steps[0], top)
    weights = (scores - top).exp()
    total = scatter_to_destinations(steps[0], weights)
    if len(steps) > 1:
        summed = scatter_to_destinations(steps[1], gather_sources(steps[1], total))
        total = gather_tensor_rows(summed, steps[1])
    return weights / gather_destinations(steps[0], total)


def gather_tensor_rows(x: torch.Tensor, sums: TensorBlock) -> torch.Tensor:
    """Return each segment's row of x [num_dst, ...] as [P, ...]; backward does not need atomics."""
    spread = gather_destinations(sums, x)
    # The segments of a destination are adjacent in `sums.columns`.
    inverse = torch.empty_like(sums.columns.long())
    inverse[sums.columns.long()] = torch.arange(len(inverse), device=inverse.device)
    from hyrt.nn.hetero.type_order import permute_rows

    return permute_rows(spread, inverse, sums.columns.long())


def weighted_segment_sums(split: RelationSplit, weights: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sum the source rows of each segment, weighted per head, as [P, H, w].

    `weights` is [E, H], and `x` is [num_src, H, w], or [num_src, 1, w] if heads share rows.
    """
    runs = split.runs
    if isinstance(runs, TensorBlock):
        return scatter_to_destinations(runs, weights[:, :, None] * gather_sources(runs, x))
    return cast(torch.Tensor, _WeightedSums.apply(weights, x, runs))  # type: ignore[no-untyped-call]


def gather_segment_rows(split: RelationSplit, x: torch.Tensor) -> torch.Tensor:
    """Return the destination's row of x [num_dst, w] for each segment, as [P, w]; differentiable."""
    sums = split.sums
    if isinstance(sums, TensorBlock):
        return gather_tensor_rows(x, sums)
    return cast(torch.Tensor, _SegmentRows.apply(x, split))  # type: ignore[no-untyped-call]


class _SegmentRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, split: RelationSplit) -> torch.Tensor:
        from hyrt.nn.hetero.type_order import take_rows

        ctx.split, ctx.shape = split, x.shape
        return take_rows(x, split.rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        from hyrt.nn.architecture import Aggregation
        from hyrt.nn.operators.aggregate import aggregate_into

        out = empty(tuple(ctx.shape), grad)
        aggregate_into(Aggregation("sum", "none"), ctx.split.sums, _array(grad), out.numpy())
        return out, None
