"""Gathers and segment reductions along the edges of a block with torch's operators, without float atomics.

`index_add` and the backward pass of indexing use atomic additions on most accelerators, in an order that
changes from run to run. Here every sum runs over consecutive rows, forward over the block and backward over
its transpose, so equal inputs give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch

from hyrt.nn.tensor_operators.tensor_block import TensorBlock

Map = Callable[[torch.Tensor], torch.Tensor]

# Devices that have torch.segment_reduce; on other devices rows are added pairwise.
_SEGMENT_REDUCE = ("cpu", "cuda")


def segment_sum(values: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    """Sum consecutive rows.

    Parameters
    ----------
    values
        [E, ...] floating point.
    indptr
        [n + 1], the start of each segment.

    Returns
    -------
    [n, ...] of the values' dtype, zero for an empty segment. 16-bit values are summed in float32 and rounded
    once: with 8 significant bits, a sum stops growing at 256 times its summands.
    """
    if values.dtype in (torch.bfloat16, torch.float16):
        return segment_sum(values.float(), indptr).to(values.dtype)
    if values.device.type not in _SEGMENT_REDUCE:
        return pairwise_sum(values, indptr)
    if values.ndim == 1:
        return segment_sum(values[:, None], indptr)[:, 0]
    if not values.numel():
        return values.new_zeros((len(indptr) - 1, *values.shape[1:]))
    return torch.segment_reduce(values.contiguous(), "sum", offsets=indptr.long(), unsafe=True, initial=0)


class _Halving:
    """Rounds in which adjacent rows of a segment are combined in pairs, until each segment has one row."""

    def __init__(self, indptr: torch.Tensor) -> None:
        self.starts = indptr[:-1].long()
        self.counts = indptr[1:].long() - self.starts
        self.longest = int(self.counts.max()) if len(self.counts) else 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the positions of the left and right rows of each pair, and whether there is a right row."""
        halves = (self.counts + 1) // 2
        ends = halves.cumsum(0)
        starts = ends - halves
        rows = torch.arange(len(halves), device=halves.device).repeat_interleave(halves)
        within = torch.arange(len(rows), device=rows.device) - starts[rows]
        left = self.starts[rows] + 2 * within
        paired = 2 * within + 1 < self.counts[rows]
        self.starts, self.counts, self.longest = starts, halves, (self.longest + 1) // 2
        return left, left + paired, paired


def _fill_segments(values: torch.Tensor, counts: torch.Tensor, empty: int) -> torch.Tensor:
    """Return one row per segment: `values` has rows only for the segments that have one row."""
    if not len(values):
        return values.new_full((len(counts), *values.shape[1:]), empty)
    has_row = counts > 0
    index = (has_row.cumsum(0) - 1).clamp(min=0)
    return torch.where(has_row.view(-1, *[1] * (values.ndim - 1)), values[index], empty)


def pairwise_sum(values: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    """Compute `segment_sum` with indexing and addition only, which every torch device has."""
    rounds = _Halving(indptr)
    while rounds.longest > 1:
        left, right, paired = rounds.next()
        mask = paired.view(-1, *[1] * (values.ndim - 1))
        values = values[left] + torch.where(mask, values[right], 0)
    return _fill_segments(values, rounds.counts, 0)


def segment_max(values: torch.Tensor, indptr: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the elementwise maxima of consecutive rows and their positions.

    Parameters
    ----------
    values
        [E, f] floating point.
    indptr
        [n + 1], the start of each segment.

    Returns
    -------
    [n, f] maxima, zero for an empty segment, NaN if one value is NaN; [n, f] int64, the first row that has
    the maximum, -1 for an empty segment.
    """
    numbers = torch.arange(len(values), device=values.device)
    winners = numbers.view(-1, *[1] * (values.ndim - 1)).expand(values.shape)
    rounds = _Halving(indptr)
    while rounds.longest > 1:
        left, right, _ = rounds.next()
        first, second = values[left], values[right]
        # A row without a partner is compared with itself. NaN must be propagated, so it counts as greater.
        better = (second > first) | (second.isnan() & ~first.isnan())
        values = torch.where(better, second, first)
        winners = torch.where(better, winners[right], winners[left])
    return _fill_segments(values, rounds.counts, 0), _fill_segments(winners, rounds.counts, -1)


class _LinearMap(torch.autograd.Function):
    """Linear map of rows, given together with its transpose."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, run_forward: Map, run_backward: Map) -> torch.Tensor:
        ctx.run_backward = run_backward
        return run_forward(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.run_backward(grad), None, None


def _apply_linear_map(x: torch.Tensor, run_forward: Map, run_backward: Map) -> torch.Tensor:
    return cast(torch.Tensor, _LinearMap.apply(x, run_forward, run_backward))  # type: ignore[no-untyped-call]


class _MaxAggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, block: TensorBlock) -> torch.Tensor:
        best, winners = segment_max(x.index_select(0, block.columns), block.indptr)
        ctx.block = block
        ctx.save_for_backward(winners)
        return best

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (winners,) = ctx.saved_tensors
        transposed = ctx.block.transposed()
        is_argmax = winners.index_select(0, transposed.rows) == transposed.edges[:, None]
        return segment_sum(
            torch.where(is_argmax, grad.index_select(0, transposed.rows), 0), transposed.indptr
        ), None


def from_sources(block: TensorBlock, x: torch.Tensor) -> torch.Tensor:
    """Gather each edge's source row of x [num_src, ...] as [E, ...]; differentiable."""

    def run_backward(grad: torch.Tensor) -> torch.Tensor:
        transposed = block.transposed()
        return segment_sum(grad.index_select(0, transposed.edges), transposed.indptr)

    return _apply_linear_map(x, lambda rows: rows.index_select(0, block.columns), run_backward)


def _expand_to_edges(block: TensorBlock, x: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, block.rows())


def _sum_per_row(block: TensorBlock, values: torch.Tensor) -> torch.Tensor:
    return segment_sum(values, block.indptr)


def from_destinations(block: TensorBlock, x: torch.Tensor) -> torch.Tensor:
    """Gather each edge's destination row of x [num_dst, ...] as [E, ...]; differentiable."""
    return _apply_linear_map(x, partial(_expand_to_edges, block), partial(_sum_per_row, block))


def to_destinations(block: TensorBlock, values: torch.Tensor) -> torch.Tensor:
    """Sum the edges' values [E, ...] per destination as [num_dst, ...]; differentiable."""
    return _apply_linear_map(values, partial(_sum_per_row, block), partial(_expand_to_edges, block))


def max_of_sources(block: TensorBlock, x: torch.Tensor) -> torch.Tensor:
    """Compute [num_dst, f] maxima of source rows, 0 without edges; the first of a tie gets the gradient."""
    return cast(torch.Tensor, _MaxAggregate.apply(x, block))  # type: ignore[no-untyped-call]
