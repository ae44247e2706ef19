"""Layer operators over tensor blocks for every torch device, from torch's operators and without atomics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional

from hyrt.nn.architecture import Aggregation
from hyrt.nn.operators.attention_dropout import HEADS_PER_DRAW, AttentionMask
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.runtime.rng import GOLDEN

RowMap = Callable[[torch.Tensor], torch.Tensor]

# Devices that have torch.segment_reduce; on other devices rows are added pairwise.
_SEGMENT_REDUCE = ("cpu", "cuda")


def segment_sum(values: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    """Sum the rows `values` [E, ...] of each segment that `indptr` [n + 1] starts, as [n, ...].

    An empty segment has zeros. 16-bit values are summed in float32 and rounded once: with 8 significant bits,
    a sum stops growing at 256 times its summands.
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
    """Rounds that combine adjacent rows of each segment in pairs, until every segment has one row."""

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
    """Expand `values`, which has no rows for empty segments, to one row per segment."""
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
    """Compute the maxima [n, f] of each segment's rows `values` [E, f], and their positions [n, f] int64.

    A position is the first row that has the maximum. An empty segment has the maximum 0 and the position -1;
    the maximum is NaN if a value is NaN.
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
    def forward(ctx: Any, x: torch.Tensor, run_forward: RowMap, run_backward: RowMap) -> torch.Tensor:
        ctx.run_backward = run_backward
        return run_forward(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.run_backward(grad), None, None


def _apply_linear_map(x: torch.Tensor, run_forward: RowMap, run_backward: RowMap) -> torch.Tensor:
    return cast(torch.Tensor, _LinearMap.apply(x, run_forward, run_backward))  # type: ignore[no-untyped-call]


class _TensorMaxAggregate(torch.autograd.Function):
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


def gather_sources(block: TensorBlock, x: torch.Tensor) -> torch.Tensor:
    """Gather each edge's source row of x [num_src, ...] as [E, ...]; differentiable."""

    def run_backward(grad: torch.Tensor) -> torch.Tensor:
        transposed = block.transposed()
        return segment_sum(grad.index_select(0, transposed.edges), transposed.indptr)

    return _apply_linear_map(x, lambda rows: rows.index_select(0, block.columns), run_backward)


def _expand_to_edges(block: TensorBlock, x: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, block.rows())


def _sum_per_row(block: TensorBlock, values: torch.Tensor) -> torch.Tensor:
    return segment_sum(values, block.indptr)


def gather_destinations(block: TensorBlock, x: torch.Tensor) -> torch.Tensor:
    """Gather each edge's destination row of x [num_dst, ...] as [E, ...]; differentiable."""
    return _apply_linear_map(x, partial(_expand_to_edges, block), partial(_sum_per_row, block))


def scatter_to_destinations(block: TensorBlock, values: torch.Tensor) -> torch.Tensor:
    """Sum the edges' values [E, ...] per destination as [num_dst, ...]; differentiable."""
    return _apply_linear_map(values, partial(_sum_per_row, block), partial(_expand_to_edges, block))


def aggregate_max(block: TensorBlock, x: torch.Tensor) -> torch.Tensor:
    """Compute [num_dst, f] maxima of source rows, 0 without edges; the first of a tie gets the gradient."""
    return cast(torch.Tensor, _TensorMaxAggregate.apply(x, block))  # type: ignore[no-untyped-call]


def tensor_scales(
    aggregation: Aggregation, block: TensorBlock, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Return factors of rows [num_dst], sources [num_src], self-loops [num_dst] and edges [E].

    See `hyrt.nn.operators.aggregate.compute_scales`.
    """
    counts = (block.indptr[1:] - block.indptr[:-1]).to(dtype)
    degrees = block.degrees.to(dtype)
    upscale = degrees / counts.clamp(min=1) if block.weights is None else torch.ones_like(degrees)
    self_loop: torch.Tensor | None = None
    source: torch.Tensor | None = None
    edge, sums = block.weights, block.weighted_degrees if aggregation.weighted else None
    source_degrees = block.source_degrees
    if sums is not None:
        assert block.source_weighted_degrees is not None
        edge, degrees, source_degrees = block.edge_factors, sums.to(dtype), block.source_weighted_degrees
    if aggregation.reduce == "mean":
        if sums is not None:
            row = upscale / torch.where(degrees > 0, degrees, 1)
        else:
            row = 1 / (counts if block.weights is None else degrees).clamp(min=1)
    elif aggregation.reduce == "gcn":
        row = upscale / (degrees + 1).sqrt()
        source = 1 / (source_degrees.to(dtype) + 1).sqrt()
    else:
        row = upscale
    if aggregation.self_path == "add":
        self_loop = (
            1 / (degrees + 1)
            if aggregation.reduce == "gcn"
            else torch.full_like(degrees, 1 + aggregation.epsilon)
        )
    return row, source, self_loop, edge


def aggregate_tensors(block: TensorBlock, x: torch.Tensor, aggregation: Aggregation) -> torch.Tensor:
    """Compute `hyrt.nn.operators.aggregate.aggregate`, which checks the arguments, over a tensor block."""
    if aggregation.reduce == "max":
        total = aggregate_max(block, x)
    else:
        row, source, self_loop, edge = tensor_scales(aggregation, block, x.dtype)
        edge_values = gather_sources(block, x if source is None else x * source[:, None])
        if edge is not None:
            edge_values = edge_values * edge.to(x.dtype)[:, None]
        total = scatter_to_destinations(block, edge_values) * row[:, None]
        if self_loop is not None:
            total = total + self_loop[:, None] * x[: block.num_dst]
    if aggregation.self_path == "concat":
        return torch.cat([x[: block.num_dst], total], 1)
    return total


def attend_tensors(
    block: TensorBlock,
    x: torch.Tensor,
    u_src: torch.Tensor,
    u_dst: torch.Tensor,
    slope: float,
    mask: AttentionMask | None = None,
) -> torch.Tensor:
    """Compute `hyrt.nn.operators.attention.attend`, which checks the arguments, over a tensor block."""
    num = block.num_dst
    slices = x.unsqueeze(1) if x.ndim == 2 else x

    def score(rows: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        # A single product if all heads read the same rows.
        return rows[:, 0] @ vectors.t() if rows.shape[1] == 1 else torch.einsum("nhf,hf->nh", rows, vectors)

    at_source, offset = score(slices, u_src), score(slices[:num], u_dst)
    edge_values = functional.leaky_relu(
        gather_sources(block, at_source) + gather_destinations(block, offset), negative_slope=slope
    )
    self_loop = functional.leaky_relu(at_source[:num] + offset, negative_slope=slope)
    with torch.no_grad():
        # The offset does not change the softmax and needs no gradient.
        best, winners = segment_max(edge_values, block.indptr)
        top = torch.where(winners < 0, self_loop, torch.maximum(best, self_loop))
    weight = (edge_values - gather_destinations(block, top)).exp()
    self_weight = (self_loop - top).exp()
    total = self_weight + scatter_to_destinations(block, weight)
    if mask is not None:
        vertices, num_heads = block.destinations.long(), len(u_src)
        ends = block.sources.long()[block.columns.long()], gather_destinations(block, vertices)
        weight = weight * _attention_factors(mask, *ends, num_heads).to(weight.dtype)
        self_weight = self_weight * _attention_factors(mask, vertices, vertices, num_heads).to(weight.dtype)
    shared = gather_sources(block, slices[:, 0]) if slices.shape[1] == 1 else None
    heads = []
    for h in range(len(u_src)):
        rows = slices[:, 0] if shared is not None else slices[:, h]
        neighbors = shared if shared is not None else gather_sources(block, rows)
        summed = scatter_to_destinations(block, weight[:, h, None] * neighbors)
        heads.append((self_weight[:, h, None] * rows[:num] + summed) / total[:, h, None])
    return torch.stack(heads)


def linear_tensors(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, relu: bool, low_precision: bool
) -> torch.Tensor:
    """Compute `hyrt.nn.operators.linear.linear`, which checks the arguments, with torch's operators."""
    if low_precision:
        out = functional.linear(x.bfloat16(), weight.bfloat16()).to(x.dtype)
        out = out if bias is None else out + bias
    else:
        out = functional.linear(x, weight, bias)
    return out.relu() if relu else out


# Torch's 64-bit integers are signed, and their products wrap around.
def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


_GOLDEN = _signed(int(GOLDEN))
_MIX_A = _signed(0xBF58476D1CE4E5B9)
_MIX_B = _signed(0x94D049BB133111EB)


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right logically: torch's own shift keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix64(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shifted(z, 30)) * _MIX_A
    z = (z ^ _shifted(z, 27)) * _MIX_B
    return z ^ _shifted(z, 31)


def dropout_mask(vertices: torch.Tensor, width: int, key: np.uint64, threshold: int) -> torch.Tensor:
    """Return the mask [n, width] of `hyrt.nn.operators.kernels.drop`, bit for bit: True keeps an element."""
    stream = _mix64((vertices.long() + 1) * _GOLDEN + _signed(int(key)))
    groups = torch.arange(1, -(-width // 4) + 1, device=vertices.device) * _GOLDEN
    bits = _mix64(stream[:, None] + groups)
    lanes = torch.stack([(bits >> 16 * lane) & 0xFFFF for lane in range(4)], 2)
    return lanes.view(len(vertices), -1)[:, :width] >= threshold


def _attention_factors(
    mask: AttentionMask, sources: torch.Tensor, destinations: torch.Tensor, heads: int
) -> torch.Tensor:
    """Return [E, heads] float64 factors, as `hyrt.nn.operators.attention_dropout.mask_edge` bit for bit."""
    groups = -(-heads // HEADS_PER_DRAW)
    stream = _mix64((destinations + 1) * _GOLDEN + _signed(int(mask.key)))
    counters = sources[:, None] * groups + torch.arange(groups, device=sources.device)
    bits = _mix64(stream[:, None] + (counters + 1) * _GOLDEN)
    lanes = torch.stack([(bits >> 16 * lane) & 0xFFFF for lane in range(4)], 2)
    keep = lanes.flatten(1)[:, :heads] >= int(mask.threshold)
    return keep.double() * mask.scale


def dropout_tensors(
    x: torch.Tensor, vertices: torch.Tensor, key: np.uint64, threshold: int, scale: float
) -> torch.Tensor:
    """Multiply the elements of `dropout_mask` by `scale` and zero the others; differentiable."""
    keep = dropout_mask(vertices, x.shape[1], key, threshold)
    return torch.where(keep, x * scale, 0)
