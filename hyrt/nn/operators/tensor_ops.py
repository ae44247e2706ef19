"""Blocks of torch tensors, and layer operators over them for all torch devices, without atomics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional

from hyrt.formatting import short_repr
from hyrt.nn.architecture import Aggregation
from hyrt.nn.fused.c_codegen import TensorLoops
from hyrt.nn.operators.attention_dropout import HEADS_PER_DRAW, AttentionDropout
from hyrt.runtime.rng import GOLDEN


@dataclass(slots=True)
class TensorTransposed:
    """Edges of a block sorted by source; see `hyrt.sampling.block.Transposed`."""

    indptr: torch.Tensor
    """Index of the first edge of each source, [num_src + 1] int64."""
    rows: torch.Tensor
    """Destination of each edge, [E] int64."""
    edges: torch.Tensor
    """Index of each edge in the block, [E] int64."""

    __repr__ = short_repr


@dataclass(slots=True)
class DerivedEdges:
    """Data that are derived from the edges of a block at first use."""

    rows: torch.Tensor | None = None
    transposed: TensorTransposed | None = None
    with_self_loops: TensorBlock | None = None
    relations: Any = None

    __repr__ = short_repr


@dataclass(slots=True, eq=False)
class TensorBlock:
    """Layer of a mini-batch on a torch device, with the fields of `Block` as tensors; always relabelled."""

    indptr: torch.Tensor
    """Index of the first edge of each destination, [num_dst + 1] int32 or int64."""
    columns: torch.Tensor
    """Source of each edge, [E] int32 or int64."""
    sources: torch.Tensor
    """Vertex of each source, [num_src]; the destinations are the first sources."""
    num_dst: int
    """Number of destinations."""
    degrees: torch.Tensor
    """In-degree of each destination in the full graph, [num_dst] int32."""
    source_degrees: torch.Tensor
    """In-degree of each source in the full graph, [num_src] int32."""
    layer: int
    step: int = 0
    seed: int = 0
    """Seed of the sampler. The fields `layer`, `step` and `seed` are the same as in `Block`."""
    weights: torch.Tensor | None = None
    """Factor of each edge, [E] float32, or None."""
    edge_types: torch.Tensor | None = None
    """Type of each edge, [E] integers, or None."""
    edge_weights: torch.Tensor | None = None
    edge_features: torch.Tensor | None = None
    run_weights: torch.Tensor | None = None
    weighted_degrees: torch.Tensor | None = None
    source_weighted_degrees: torch.Tensor | None = None
    """Sum of edge weights per source; this field, `edge_weights` and `edge_features` are as in `Block`."""
    aggregate: Callable[[TensorBlock, torch.Tensor, Aggregation], torch.Tensor] | None = None
    """Aggregation kernel of the device; None to use torch operators."""
    loops: TensorLoops | None = None
    """Edge loops of the device; None to use torch operators."""
    derived: DerivedEdges = field(default_factory=DerivedEdges, repr=False)
    """Cache of `rows` and `transposed`, which blocks with equal edges may share."""

    __repr__ = short_repr

    @property
    def num_src(self) -> int:
        return len(self.sources)

    @property
    def num_edges(self) -> int:
        return len(self.columns)

    @property
    def in_place(self) -> bool:
        return False

    @property
    def destinations(self) -> torch.Tensor:
        """Vertices of the destinations, [num_dst]."""
        return self.sources[: self.num_dst]

    @property
    def edge_rows(self) -> torch.Tensor | None:
        """Edge features [E, columns], or edge weights as one column; see `Block.edge_rows`."""
        if self.edge_features is not None or self.edge_weights is None:
            return self.edge_features
        return self.edge_weights[:, None]

    @property
    def edge_factors(self) -> torch.Tensor | None:
        """Products of weights and edge weights [E]; see `Block.edge_factors`."""
        if self.weights is None or self.edge_weights is None:
            return self.edge_weights if self.weights is None else self.weights
        return self.weights * self.edge_weights

    def rows(self) -> torch.Tensor:
        """Return the destination of each edge, [E] int64, which is computed at the first call."""
        if self.derived.rows is None:
            numbers = torch.arange(self.num_dst, device=self.columns.device)
            counts = self.indptr[1:] - self.indptr[:-1]
            # Without `output_size`, the host would wait for the device to compute the size.
            self.derived.rows = numbers.repeat_interleave(counts, output_size=self.num_edges)
        return self.derived.rows

    def transposed(self) -> TensorTransposed:
        """Return the cached edges by source. A stable sort gives the same order as on the host."""
        if self.derived.transposed is None:
            columns, edges = torch.sort(self.columns, stable=True)
            borders = torch.arange(self.num_src + 1, device=columns.device, dtype=columns.dtype)
            self.derived.transposed = TensorTransposed(
                torch.searchsorted(columns, borders), self.rows()[edges], edges
            )
        return self.derived.transposed

    def with_edges(self, num_dst: int, **fields: torch.Tensor) -> TensorBlock:
        """Return a block with the same sources and other edges, without the cached data."""
        return replace(self, num_dst=num_dst, derived=DerivedEdges(), **fields)  # type: ignore[arg-type]

    def edge_index(self) -> torch.Tensor:
        """Return (source, destination) positions as a [2, E] int64 tensor for PyG layers."""
        return torch.stack([self.columns.long(), self.rows()])


RowMap = Callable[[torch.Tensor], torch.Tensor]

# Devices that have torch.segment_reduce. On other devices, rows are added pairwise.
_SEGMENT_REDUCE = ("cpu", "cuda")


def segment_sum(values: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    """Sum the rows `values` [E, ...] of each segment, which begin at `indptr` [n + 1]; return [n, ...].

    The sum of an empty segment is zero. 16-bit values are summed in float32 and rounded once: with 8
    significant bits, a sum would stop growing at 256 times its summands.
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
    """Rounds that combine adjacent rows of each segment in pairs until each segment has one row."""

    def __init__(self, indptr: torch.Tensor) -> None:
        self.starts = indptr[:-1].long()
        self.counts = indptr[1:].long() - self.starts
        self.longest = int(self.counts.max()) if len(self.counts) else 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the positions of the left and right row of each pair, and whether there is a right row."""
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
    """Insert a row for each empty segment into `values`, which has none."""
    if not len(values):
        return values.new_full((len(counts), *values.shape[1:]), empty)
    has_row = counts > 0
    index = (has_row.cumsum(0) - 1).clamp(min=0)
    return torch.where(has_row.view(-1, *[1] * (values.ndim - 1)), values[index], empty)


def pairwise_sum(values: torch.Tensor, indptr: torch.Tensor) -> torch.Tensor:
    """Compute `segment_sum` with indexing and addition only, which all torch devices support."""
    rounds = _Halving(indptr)
    while rounds.longest > 1:
        left, right, paired = rounds.next()
        mask = paired.view(-1, *[1] * (values.ndim - 1))
        values = values[left] + torch.where(mask, values[right], 0)
    return _fill_segments(values, rounds.counts, 0)


def segment_max(values: torch.Tensor, indptr: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the maximum [n, f] of each segment's rows `values` [E, f], and its position [n, f] int64.

    A position is that of the first row with the maximum. An empty segment has the maximum 0 and the position
    -1. The maximum is NaN if any value is NaN.
    """
    numbers = torch.arange(len(values), device=values.device)
    winners = numbers.view(-1, *[1] * (values.ndim - 1)).expand(values.shape)
    rounds = _Halving(indptr)
    while rounds.longest > 1:
        left, right, _ = rounds.next()
        first, second = values[left], values[right]
        # A row without a partner is compared with itself. NaN must be propagated, so it counts as larger.
        better = (second > first) | (second.isnan() & ~first.isnan())
        values = torch.where(better, second, first)
        winners = torch.where(better, winners[right], winners[left])
    return _fill_segments(values, rounds.counts, 0), _fill_segments(winners, rounds.counts, -1)


class _LinearMap(torch.autograd.Function):
    """Linear map of rows that is given together with its transpose."""

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
    """Gather the source row of each edge from x [num_src, ...] as [E, ...]; differentiable."""

    def run_backward(grad: torch.Tensor) -> torch.Tensor:
        transposed = block.transposed()
        return segment_sum(grad.index_select(0, transposed.edges), transposed.indptr)

    return _apply_linear_map(x, lambda rows: rows.index_select(0, block.columns), run_backward)


def _expand_to_edges(block: TensorBlock, x: torch.Tensor) -> torch.Tensor:
    return x.index_select(0, block.rows())


def _sum_per_row(block: TensorBlock, values: torch.Tensor) -> torch.Tensor:
    return segment_sum(values, block.indptr)


def gather_destinations(block: TensorBlock, x: torch.Tensor) -> torch.Tensor:
    """Gather the destination row of each edge from x [num_dst, ...] as [E, ...]; differentiable."""
    return _apply_linear_map(x, partial(_expand_to_edges, block), partial(_sum_per_row, block))


def scatter_to_destinations(block: TensorBlock, values: torch.Tensor) -> torch.Tensor:
    """Sum the edge values [E, ...] of each destination as [num_dst, ...]; differentiable."""
    return _apply_linear_map(values, partial(_sum_per_row, block), partial(_expand_to_edges, block))


def aggregate_max(block: TensorBlock, x: torch.Tensor) -> torch.Tensor:
    """Compute maxima [num_dst, f] of source rows, 0 without edges. The first of a tie gets the gradient."""
    return cast(torch.Tensor, _TensorMaxAggregate.apply(x, block))  # type: ignore[no-untyped-call]


def tensor_scales(
    aggregation: Aggregation, block: TensorBlock, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Return the factors of rows [num_dst], sources [num_src], self-loops [num_dst] and edges [E].

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
    """Compute `hyrt.nn.operators.aggregate.aggregate`, which has checked the arguments, on a tensor block."""
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
    mask: AttentionDropout | None = None,
) -> torch.Tensor:
    """Compute `hyrt.nn.operators.attention.attend`, which has checked the arguments, on a tensor block."""
    num = block.num_dst
    slices = x.unsqueeze(1) if x.ndim == 2 else x

    def score(rows: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        # If all heads read the same rows, one product is enough.
        return rows[:, 0] @ vectors.t() if rows.shape[1] == 1 else torch.einsum("nhf,hf->nh", rows, vectors)

    at_source, offset = score(slices, u_src), score(slices[:num], u_dst)
    edge_values = functional.leaky_relu(
        gather_sources(block, at_source) + gather_destinations(block, offset), negative_slope=slope
    )
    self_loop = functional.leaky_relu(at_source[:num] + offset, negative_slope=slope)
    with torch.no_grad():
        # Subtracting the maximum does not change the softmax, so the maximum needs no gradient.
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
    """Compute `hyrt.nn.operators.linear.linear`, which has checked the arguments, with torch operators."""
    if low_precision:
        out = functional.linear(x.bfloat16(), weight.bfloat16()).to(x.dtype)
        out = out if bias is None else out + bias
    else:
        out = functional.linear(x, weight, bias)
    return out.relu() if relu else out


# 64-bit integers of torch are signed, and their products wrap around.
def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


_GOLDEN = _signed(int(GOLDEN))
_MIX_A = _signed(0xBF58476D1CE4E5B9)
_MIX_B = _signed(0x94D049BB133111EB)


def _shifted(z: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift right logically, whereas the shift operator of torch preserves the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix64(z: torch.Tensor) -> torch.Tensor:
    z = (z ^ _shifted(z, 30)) * _MIX_A
    z = (z ^ _shifted(z, 27)) * _MIX_B
    return z ^ _shifted(z, 31)


def dropout_mask(vertices: torch.Tensor, width: int, key: np.uint64, threshold: int) -> torch.Tensor:
    """Return the mask [n, width] of `kernels.dropout_rows` with equal bits; True retains an element."""
    stream = _mix64((vertices.long() + 1) * _GOLDEN + _signed(int(key)))
    groups = torch.arange(1, -(-width // 4) + 1, device=vertices.device) * _GOLDEN
    bits = _mix64(stream[:, None] + groups)
    lanes = torch.stack([(bits >> 16 * lane) & 0xFFFF for lane in range(4)], 2)
    return lanes.view(len(vertices), -1)[:, :width] >= threshold


def _attention_factors(
    mask: AttentionDropout, sources: torch.Tensor, destinations: torch.Tensor, heads: int
) -> torch.Tensor:
    """Return factors [E, heads] float64 with the same bits as `attention_dropout.mask_edge`."""
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
    """Zero the elements that `dropout_mask` drops and multiply the others by `scale`; differentiable."""
    keep = dropout_mask(vertices, x.shape[1], key, threshold)
    return torch.where(keep, x * scale, 0)
