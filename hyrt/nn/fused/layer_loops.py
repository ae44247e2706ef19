"""Gathers of the built-in layers as loops over edges, for devices that run only such loops.

Vertices are left to the host. On the host's own cores, the operators in `hyrt.nn.operators` are faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.nn.architecture import Aggregation
from hyrt.nn.fused.edge_expr import EdgeExprBuilder
from hyrt.nn.fused.edge_loop import EdgeLoop, Edges
from hyrt.nn.fused.fused_gather import FusedGather
from hyrt.nn.fused.loop_backend import run_loop
from hyrt.nn.operators.aggregate import check_weights, compute_scales
from hyrt.nn.operators.attention_dropout import HEADS_PER_DRAW, AttentionMask
from hyrt.nn.operators.autograd import empty_array, once_differentiable
from hyrt.runtime.rng import GOLDEN, vertex_streams
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class SumLoops:
    """Gather a_i = r_i sum_j c_j x_j over the edges j -> i, with the factors r_i from `Edges`."""

    source_scale: Array | None
    """[num_src] float32, the factors c_j; None if all are 1."""
    has_loops: bool
    """Whether destinations have a self-loop in addition to their edges."""

    __repr__ = short_repr

    def forward(self, edges: Edges, x: Array, out: Array, workers: Workers | None) -> None:
        """Gather [m, w] from [num_src, w] rows over edges by destination; overwrites `out`."""
        loop, _ = _sum_loops(x.shape[1], self.source_scale is not None, self.has_loops)
        run_loop(loop, edges, [x, *self._scale()], (out,), None, workers)

    def backward(self, by_source: Edges, grad: Array, out: Array, workers: Workers | None) -> None:
        """Backpropagate the gradient [m, w] of the gathered rows to the input rows; overwrites `out`."""
        _, loop = _sum_loops(grad.shape[1], self.source_scale is not None, self.has_loops)
        run_loop(loop, by_source, [*self._scale(), grad], (out,), None, workers)

    def _scale(self) -> list[Array]:
        return [] if self.source_scale is None else [self.source_scale[:, None]]


@cache
def _sum_loops(width: int, is_scaled: bool, has_loops: bool) -> tuple[EdgeLoop, EdgeLoop]:
    """Return the loop of the sum, and the loop of its gradient over the transpose."""
    builder = EdgeExprBuilder(1, width)
    value = builder.operand("source", "row")
    if is_scaled:
        scale = builder.operand("source", "column", takes_gradient=False)
        value = builder.multiply(builder.spread(scale), value)
    forward = EdgeLoop(builder.build([value]), "destination", "sum", has_loops)
    builder = EdgeExprBuilder(1, width)
    factor = builder.operand("source", "column") if is_scaled else None
    value = builder.operand("gathered", "row")
    if factor is not None:
        value = builder.multiply(builder.spread(factor), value)
    return forward, EdgeLoop(builder.build([value]), "source", "sum", has_loops, by_chunk=(False,))


@cache
def max_loops(width: int) -> tuple[EdgeLoop, EdgeLoop]:
    """Return the loop of the column-wise maximum, and the loop of its gradient over the transpose."""
    builder = EdgeExprBuilder(1, width)
    forward = EdgeLoop(builder.build([builder.operand("source", "row")]), "destination", "max", False)
    builder = EdgeExprBuilder(1, width)
    gradient = builder.build([builder.operand("gathered", "row")])
    return forward, EdgeLoop(gradient, "source", "sum", False, masked=True, by_chunk=(False,))


@cache
def attention_gather(heads: int, width: int, slope: float, dropout: tuple[int, float] | None) -> FusedGather:
    """Return GAT's softmax-weighted sum with LeakyReLU slope `slope`, and a self-loop at each vertex.

    Its operands are the rows [num_src, heads * width], the scores [num_src, heads] and [num_dst, heads], and,
    with `dropout` (threshold and scale of an `AttentionMask`), the keys of both ends from `edge_keys`.
    """
    builder = EdgeExprBuilder(heads, width)
    message = builder.operand("source", "row")
    raw = builder.add(builder.operand("source", "column"), builder.operand("destination", "column"))
    low = builder.multiply(raw, builder.constant(slope, "column"))
    score = builder.where_positive(raw, raw, low)
    if dropout is not None:
        threshold, scale = dropout
        keys = builder.operand("source", "key"), builder.operand("destination", "key")
        mask = builder.multiply(builder.keep_mask(*keys, threshold), builder.constant(scale, "column"))
        message = builder.multiply(builder.spread(mask), message)
    return FusedGather(builder.build([score, message]), "attention", has_loops=True)


def masked_attention_gather(heads: int, width: int, slope: float, mask: AttentionMask | None) -> FusedGather:
    """Return `attention_gather` with the dropout of a mask."""
    dropped = None if mask is None else (int(mask.threshold), float(mask.scale))
    return attention_gather(heads, width, slope, dropped)


def edge_keys(mask: AttentionMask, heads: int, sources: Array, destinations: Array) -> list[Array]:
    """Compute the keys [n, 1] uint64 of each end's vertex ids [n], from which loops compute the mask."""
    groups = np.uint64(-(-heads // HEADS_PER_DRAW))
    # Index of an edge's first random number. All arithmetic is modulo 2^64.
    first = sources.astype(np.uint64) * groups + np.uint64(1)
    return [(first * GOLDEN)[:, None], vertex_streams(mask.key, destinations)[:, None]]


def run_attention_backward(
    gather: FusedGather,
    edges: Edges,
    by_source: Edges,
    operands: list[Array],
    saved: tuple[Array, Array],
    grad: Array,
    outs: tuple[Array, Array, Array],
    workers: Workers | None,
) -> None:
    """Backpropagate `grad` [m, heads * width] through `gather` to the rows and to both scores.

    `gather` is from `masked_attention_gather`. `saved` has its state [m, heads] and the gathered rows [m,
    heads * width]. `outs` receives the gradients of the rows, of the source scores and of the destination
    scores.
    """
    denominators, gathered = saved
    means = np.empty_like(denominators)
    gather.output_gradient_products(grad, gathered, means, workers)
    inputs = [*operands, denominators, means, grad]
    rows, source_scores, destination_scores = outs
    if edges.rows is not None:
        destination_scores.fill(0)
    gather.backward_to_destinations(edges, inputs, [destination_scores], None, workers)
    gather.backward_to_sources(by_source, inputs, [rows, source_scores], None, workers)


_FLOAT = np.dtype(np.float32)


class _BlockLoops(Protocol):
    """Forward and backward loops over a block, with the state that backward needs."""

    def forward(self, inputs: Sequence[Array]) -> Array: ...

    def backward(self, inputs: Sequence[Array], grad: Array) -> Sequence[Array]: ...


class _OverBlock(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loops: _BlockLoops, *inputs: torch.Tensor) -> torch.Tensor:
        arrays = [np.ascontiguousarray(each.detach().numpy()) for each in inputs]
        ctx.known_edges = loops, arrays
        return torch.from_numpy(loops.forward(arrays))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        loops, arrays = ctx.known_edges
        if not any(ctx.needs_input_grad):
            return (None,) * (1 + len(arrays))
        found = loops.backward(arrays, np.ascontiguousarray(grad.detach().numpy()))
        return None, *(torch.from_numpy(each) for each in found)


@dataclass(slots=True)
class _SumOverBlock:
    block: Block
    aggregation: Aggregation
    edges: Edges
    sum: SumLoops

    @classmethod
    def create(cls, block: Block, aggregation: Aggregation) -> _SumOverBlock:
        factors = compute_scales(aggregation, block, _FLOAT)
        loop_scale = factors.self_loop
        if loop_scale is not None and factors.source is not None:
            loop_scale = loop_scale / factors.source[: block.num_dst]
        edges = replace(
            _by_destination(block, has_loops=loop_scale is not None),
            factors=factors.edge,
            row_scale=factors.row,
            loop_scale=loop_scale,
        )
        return cls(block, aggregation, edges, SumLoops(factors.source, loop_scale is not None))

    def forward(self, inputs: Sequence[Array]) -> Array:
        out = empty_array((self.block.num_dst, inputs[0].shape[1]), _FLOAT)
        self.sum.forward(self.edges, inputs[0], out, None)
        return out

    def backward(self, inputs: Sequence[Array], grad: Array) -> Sequence[Array]:
        out = empty_array(inputs[0].shape, _FLOAT)
        self.sum.backward(_by_source(self.block, self.edges), grad, out, None)
        return [out]


@dataclass(slots=True)
class _MaxOverBlock:
    block: Block
    winners: Array | None = None

    def forward(self, inputs: Sequence[Array]) -> Array:
        shape = (self.block.num_dst, inputs[0].shape[1])
        out, self.winners = empty_array(shape, _FLOAT), empty_array(shape, np.dtype(np.int32))
        loop, _ = max_loops(shape[1])
        edges = _by_destination(self.block, has_loops=False)
        run_loop(loop, edges, [inputs[0]], (out, self.winners), None, None)
        return out

    def backward(self, inputs: Sequence[Array], grad: Array) -> Sequence[Array]:
        out = empty_array(inputs[0].shape, _FLOAT)
        _, loop = max_loops(grad.shape[1])
        edges = _by_source(self.block, _by_destination(self.block, has_loops=False))
        run_loop(loop, edges, [grad], (out,), self.winners, None)
        return [out]


@dataclass(slots=True)
class _AttentionOverBlock:
    block: Block
    heads: int
    slope: float
    mask: AttentionMask | None
    saved: tuple[Array, Array] | None = None

    def forward(self, inputs: Sequence[Array]) -> Array:
        rows = self.block.num_dst
        out, denominators = (
            empty_array((rows, inputs[0].shape[1]), _FLOAT),
            empty_array((rows, self.heads), _FLOAT),
        )
        gather = self._gather(inputs)
        gather.forward(self._edges, self._operands(inputs), out, denominators, None)
        self.saved = denominators, out
        return out

    def backward(self, inputs: Sequence[Array], grad: Array) -> Sequence[Array]:
        assert self.saved is not None
        rows, source_scores, destination_scores = (empty_array(each.shape, _FLOAT) for each in inputs)
        by_source = _by_source(self.block, self._edges)
        run_attention_backward(
            self._gather(inputs),
            *(self._edges, by_source, self._operands(inputs), self.saved, grad),
            (rows, source_scores, destination_scores),
            None,
        )
        return [rows, source_scores, destination_scores]

    def _gather(self, inputs: Sequence[Array]) -> Any:
        return masked_attention_gather(self.heads, inputs[0].shape[1] // self.heads, self.slope, self.mask)

    @property
    def _edges(self) -> Edges:
        return _by_destination(self.block, has_loops=True)

    def _operands(self, inputs: Sequence[Array]) -> list[Array]:
        if self.mask is None:
            return list(inputs)
        assert self.block.sources is not None
        ends = self.block.sources, self.block.destinations
        return [*inputs, *edge_keys(self.mask, self.heads, *ends)]


def _by_destination(block: Block, *, has_loops: bool) -> Edges:
    return Edges(
        indptr=block.indptr, columns=block.columns, by_number=True, loops=block.num_dst if has_loops else 0
    )


def _by_source(block: Block, edges: Edges) -> Edges:
    transposed = block.transposed()
    return replace(edges, indptr=transposed.indptr, columns=transposed.rows, numbers=transposed.edges)


def aggregate_with_loops(block: Block, x: torch.Tensor, aggregation: Aggregation) -> torch.Tensor:
    """Run `hyrt.nn.operators.aggregate.aggregate` over a relabelled block with float32 rows."""
    check_weights(aggregation, block)
    if aggregation.self_path == "concat":
        gathered = aggregate_with_loops(block, x, replace(aggregation, self_path="none"))
        return torch.cat([x[: block.num_dst], gathered], 1)
    loops = _MaxOverBlock(block) if aggregation.reduce == "max" else _SumOverBlock.create(block, aggregation)
    return cast(torch.Tensor, _OverBlock.apply(loops, x))  # type: ignore[no-untyped-call]


def attend_with_loops(
    block: Block,
    products: torch.Tensor,
    u_src: torch.Tensor,
    u_dst: torch.Tensor,
    slope: float = 0.2,
    mask: AttentionMask | None = None,
) -> torch.Tensor:
    """Run `hyrt.nn.operators.attention.attend` over a relabelled block, products [n, heads, f]."""
    heads = len(u_src)
    at_source = (products * u_src).sum(2)
    at_destination = (products[: block.num_dst] * u_dst).sum(2)
    loops = _AttentionOverBlock(block, heads, slope, mask)
    gathered = _OverBlock.apply(loops, products.flatten(1), at_source, at_destination)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, gathered.view(block.num_dst, heads, -1).transpose(0, 1))
