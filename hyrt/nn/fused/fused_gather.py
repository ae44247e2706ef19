"""Fused gathers of edge expressions, forward and backward, without arrays that have one row per edge.

The built-in layers use fused gathers on devices that only run such loops and leave vertex-wise work to the
host. On host cores, the operators in `hyrt.nn.operators` are faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.nn.architecture import Aggregation
from hyrt.nn.fused.edge_loop import Combine, EdgeExpr, EdgeExprBuilder, EdgeLoop, Edges, append_gradients
from hyrt.nn.fused.loop_backend import is_on_device, run_loop
from hyrt.nn.fused.numba_codegen import MAX_UNSPLIT_LANES, column_passes
from hyrt.nn.operators.aggregate import check_weights, compute_scales
from hyrt.nn.operators.attention_dropout import HEADS_PER_DRAW, AttentionDropout
from hyrt.nn.operators.autograd import empty_array, once_differentiable
from hyrt.runtime.rng import GOLDEN, vertex_streams
from hyrt.runtime.workers import Workers, current_workers
from hyrt.sampling.block import Block

Array = NDArray[Any]


@dataclass(frozen=True)
class FusedGather:
    """Gather with messages that are an expression of both endpoints.

    The results of `form` are the messages [heads * width]; for `attention`, the scores [heads] are first. A
    mean is a sum with factors. With `has_loops`, vertices have a self-loop in addition to their edges.
    """

    form: EdgeExpr
    combine: Combine
    has_loops: bool

    @property
    def gathered_width(self) -> int:
        return self.form.heads * self.form.width

    @property
    def unfused_reason(self) -> str:
        """Return the reason why no loops can be generated; empty if they can."""
        loops = [self.forward_loop, *(loop for loop in (self.destination_loop, self.source_loop) if loop)]
        if self.form.width > MAX_UNSPLIT_LANES and any(loop.is_whole for loop in loops):
            return (
                f"the edge computation sums the {self.form.width} columns of a row, and fused loops support "
                f"at most {MAX_UNSPLIT_LANES}"
            )
        return ""

    def operands_with_gradient(self, end: str) -> list[int]:
        """Return the operands of an endpoint that may need gradients."""
        operands = enumerate(self.form.operands)
        return [k for k, operand in operands if operand.end == end and operand.takes_gradient]

    @property
    def edge_operands(self) -> list[int]:
        """Return the operands with one row per edge."""
        return [k for k, operand in enumerate(self.form.operands) if operand.end == "edge"]

    @cached_property
    def forward_loop(self) -> EdgeLoop:
        """Return the loop of the forward gather."""
        return EdgeLoop(self.form, "destination", self.combine, self.has_loops)

    @cached_property
    def _subsets(self) -> dict[tuple[bool, ...], FusedGather]:
        return {}

    def with_gradients(self, needs_gradient: tuple[bool, ...]) -> FusedGather:
        """Return the gather with gradients of the marked operands only; its loops skip the others."""
        subset = self._subsets.get(needs_gradient)
        if subset is None:
            pairs = zip(self.form.operands, needs_gradient, strict=True)
            operands = tuple(
                replace(operand, takes_gradient=operand.takes_gradient and is_required)
                for operand, is_required in pairs
            )
            subset = self._subsets[needs_gradient] = replace(self, form=replace(self.form, operands=operands))
        return subset

    def forward(
        self,
        edges: Edges,
        operands: Sequence[Array],
        out: Array,
        saved: Array | None,
        workers: Workers | None,
    ) -> None:
        """Gather over `edges` by destination into `out` [m, heads * width], one row per computed row.

        `operands` has one C-contiguous matrix per operand of the expression, all float32 or all float64; edge
        operands are ordered by edge id. `saved` receives the state for the backward pass: for `max` the
        argmax edges [m, heads * width] int32, for `attention` the logarithms of the softmax denominators [m,
        heads].
        """
        outs: tuple[Array | None, ...] = (out,) if self.combine == "sum" else (out, saved)
        run_loop(self.forward_loop, edges, operands, outs, None, workers)

    @cached_property
    def _gradients(self) -> EdgeExpr:
        """Return the expression for the gradients of all operands.

        Its last operand is the gradient of the gathered rows. For `attention`, the two operands before it are
        the logarithm of the denominator and the mean of the gradient.
        """
        builder = EdgeExprBuilder.from_expr(self.form)
        if self.combine == "attention":
            score, message = self.form.results
            lse, mean = (builder.operand("gathered", "column") for _ in range(2))
            g = builder.operand("gathered", "row")
            weight = builder.function("exp", builder.subtract(score, lse))
            along = builder.sum(builder.multiply(g, message))
            seeds = {
                score: builder.multiply(weight, builder.subtract(along, mean)),
                message: builder.multiply(builder.spread(weight), g),
            }
        else:
            g = builder.operand("gathered", "row")
            seeds = {self.form.results[0]: g}
        operand_grads = append_gradients(builder, self.form, seeds)
        results = []
        for k, operand in enumerate(self.form.operands):
            results.append(operand_grads[k] if k in operand_grads else builder.constant(0, operand.kind))
        return builder.build(results)

    def _backward_loop(self, near: str, ends: tuple[str, ...]) -> EdgeLoop | None:
        """Return the loop for gradients at some endpoints; it adds gradients to rows of far endpoints."""
        chosen = [k for end in ends for k in self.operands_with_gradient(end)]
        if not chosen:
            return None
        full = self._gradients
        builder = EdgeExprBuilder.from_expr(full)
        operand_ends = [self.form.operands[k].end for k in chosen]
        to_far = tuple(end not in (near, "shared") for end in operand_ends)
        return EdgeLoop(
            builder.build([full.results[k] for k in chosen]),
            "source" if near == "source" else "destination",
            "sum",
            self.has_loops,
            masked=self.combine == "max",
            by_chunk=tuple(end == "shared" for end in operand_ends),
            to_far=to_far if any(to_far) else (),
        )

    @cached_property
    def destination_loop(self) -> EdgeLoop | None:
        """Return the loop for gradients of destination and shared operands; None if there are none."""
        return self._backward_loop("destination", ("destination", "shared"))

    @cached_property
    def source_loop(self) -> EdgeLoop | None:
        """Return the loop for gradients of source operands; None if there are none."""
        return self._backward_loop("source", ("source",))

    @cached_property
    def both_loop(self) -> EdgeLoop | None:
        """Return one loop that replaces `destination_loop` and `source_loop` with equal bits, or None.

        It adds to far endpoints in the same order as `source_loop`. It is None with self-loops, which are
        first in `source_loop`, and with sums over columns, which would be rounded differently.
        """
        if self.destination_loop is None or self.source_loop is None or self.has_loops:
            return None
        loop = self._backward_loop("destination", ("destination", "shared", "source"))
        assert loop is not None
        kinds = {loop.form.values[at].kind for at in loop.form.results}
        return loop if kinds == {"row"} else None

    def uses_both_loop(self, edges: Edges, workers: Workers | None) -> bool:
        """Return whether `backward_to_both_ends` is available and faster than one loop per endpoint.

        It does half the work, but can only use as many threads as it has column passes. The bits are equal if
        the rows are in ascending order, which is the order of edges by source.
        """
        loop, rows = self.both_loop, edges.rows
        if loop is None or is_on_device() or (rows is not None and (rows[1:] <= rows[:-1]).any()):
            return False
        return (workers or current_workers()).count <= 2 * len(column_passes(loop.form, whole=loop.is_whole))

    def output_gradient_products(
        self, grad: Array, out: Array, means: Array, workers: Workers | None
    ) -> None:
        """Compute the dot products [m, heads] of the gathered rows and their gradient, for `attention`."""
        shape = (len(grad), self.form.heads, self.form.width)

        def work(start: int, stop: int) -> None:
            a, b = (each.reshape(shape)[start:stop] for each in (grad, out))
            np.einsum("nhd,nhd->nh", a, b, out=means[start:stop])

        (workers or current_workers()).run(work, len(grad), 4096)

    def backward_to_destinations(
        self,
        edges: Edges,
        operands: Sequence[Array],
        outs: Sequence[Array],
        winners: Array | None,
        workers: Workers | None,
    ) -> list[Array]:
        """Write the gradients of destination operands to `outs`; return the gradients of shared operands, one
        row each.

        `operands` are those of `forward`, for `attention` followed by the saved denominators and `means` [m,
        heads], and at last the gradient of the gathered rows [m, heads * width]. Only computed rows of `outs`
        are overwritten. For `max`, `winners` has the argmax edges that `forward` saved.
        """
        loop = self.destination_loop
        return [] if loop is None else run_loop(loop, edges, operands, outs, winners, workers)

    def backward_to_both_ends(
        self,
        edges: Edges,
        operands: Sequence[Array],
        destinations: Sequence[Array],
        sources: Sequence[Array],
        winners: Array | None,
        workers: Workers | None,
    ) -> list[Array]:
        """Compute the gradients of both endpoints' operands in one loop over the edges by destination."""
        assert self.both_loop is not None
        outs = [*destinations, *sources]
        return run_loop(self.both_loop, edges, operands, outs, winners, workers)

    def backward_to_sources(
        self,
        edges: Edges,
        operands: Sequence[Array],
        outs: Sequence[Array],
        winners: Array | None,
        workers: Workers | None,
    ) -> None:
        """Compute the gradients of source operands, by source; see `backward_to_destinations`."""
        if self.source_loop is not None:
            run_loop(self.source_loop, edges, operands, outs, winners, workers)


@dataclass(frozen=True, slots=True)
class SumLoops:
    """Gather a_i = r_i sum_j c_j x_j over the edges j -> i, with factors r_i from `Edges`."""

    source_scale: Array | None
    """Factors c_j, [num_src] float32; None if all are 1."""
    has_loops: bool
    """Whether destinations have a self-loop in addition to their edges."""

    __repr__ = short_repr

    def forward(self, edges: Edges, x: Array, out: Array, workers: Workers | None) -> None:
        """Gather [m, w] from rows [num_src, w] over the edges by destination; overwrite `out`."""
        loop, _ = _sum_loops(x.shape[1], self.source_scale is not None, self.has_loops)
        run_loop(loop, edges, [x, *self._scale()], (out,), None, workers)

    def backward(self, by_source: Edges, grad: Array, out: Array, workers: Workers | None) -> None:
        """Backpropagate the gradient [m, w] of the gathered rows to the input rows; overwrite `out`."""
        _, loop = _sum_loops(grad.shape[1], self.source_scale is not None, self.has_loops)
        run_loop(loop, by_source, [*self._scale(), grad], (out,), None, workers)

    def _scale(self) -> list[Array]:
        return [] if self.source_scale is None else [self.source_scale[:, None]]


@cache
def _sum_loops(width: int, is_scaled: bool, has_loops: bool) -> tuple[EdgeLoop, EdgeLoop]:
    """Return the loop of a sum, and the loop of its gradient over the transpose."""
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
    """Return the loop of a column-wise maximum, and the loop of its gradient over the transpose."""
    builder = EdgeExprBuilder(1, width)
    forward = EdgeLoop(builder.build([builder.operand("source", "row")]), "destination", "max", False)
    builder = EdgeExprBuilder(1, width)
    gradient = builder.build([builder.operand("gathered", "row")])
    return forward, EdgeLoop(gradient, "source", "sum", False, masked=True, by_chunk=(False,))


@cache
def attention_gather(heads: int, width: int, slope: float, dropout: tuple[int, float] | None) -> FusedGather:
    """Return GAT's softmax-weighted sum, with LeakyReLU slope `slope` and a self-loop per vertex.

    Its operands are the rows [num_src, heads * width], the scores [num_src, heads] and [num_dst, heads], and,
    with `dropout` (threshold and scale of an `AttentionDropout`), the two arrays from `edge_keys`.
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


def masked_attention_gather(
    heads: int, width: int, slope: float, mask: AttentionDropout | None
) -> FusedGather:
    """Return `attention_gather` with the dropout of a mask."""
    dropped = None if mask is None else (int(mask.threshold), float(mask.scale))
    return attention_gather(heads, width, slope, dropped)


def edge_keys(mask: AttentionDropout, heads: int, sources: Array, destinations: Array) -> list[Array]:
    """Compute the keys [n, 1] uint64 of both endpoints' vertex ids [n], for the mask in loops."""
    groups = np.uint64(-(-heads // HEADS_PER_DRAW))
    # Index of the first random number of an edge. All arithmetic is modulo 2^64.
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
    """Backpropagate `grad` [m, heads * width] through `gather` to the rows and the scores of both endpoints.

    `gather` is from `masked_attention_gather`. `saved` has the state [m, heads] that it saved and the
    gathered rows [m, heads * width]. `outs` receives the gradients of the rows, of the source scores and of
    the destination scores.
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
    """Forward and backward loops over a block, with the state for the backward pass."""

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
    mask: AttentionDropout | None
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
    """Compute `hyrt.nn.operators.aggregate.aggregate` over a relabelled block with float32 rows."""
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
    mask: AttentionDropout | None = None,
) -> torch.Tensor:
    """Compute `hyrt.nn.operators.attention.attend` over a relabelled block with products [n, heads, f]."""
    heads = len(u_src)
    at_source = (products * u_src).sum(2)
    at_destination = (products[: block.num_dst] * u_dst).sum(2)
    loops = _AttentionOverBlock(block, heads, slope, mask)
    gathered = _OverBlock.apply(loops, products.flatten(1), at_source, at_destination)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, gathered.view(block.num_dst, heads, -1).transpose(0, 1))
