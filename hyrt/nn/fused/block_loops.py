"""Gathers of the built-in layers over a sampled block, on a device that runs loops over edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.nn.aggregation import Aggregation
from hyrt.nn.fused.edges import Edges
from hyrt.nn.fused.layer_loops import (
    LoopedSum,
    edge_keys,
    largest_loops,
    looped_attention,
    run_attention_back,
)
from hyrt.nn.fused.loop_runner import run_loop
from hyrt.nn.operators.aggregate import check_weights, scales
from hyrt.nn.operators.attention_mask import AttentionMask
from hyrt.nn.operators.first_derivative import first_derivative
from hyrt.nn.operators.result_memory import empty_array
from hyrt.sampling.block import Block

Array = NDArray[Any]
_FLOAT = np.dtype(np.float32)


class _BlockLoops(Protocol):
    """Forward and backward loops over a block, with the state that backward needs."""

    def forward(self, inputs: Sequence[Array]) -> Array: ...

    def backward(self, inputs: Sequence[Array], grad: Array) -> Sequence[Array]: ...


class _OverBlock(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loops: _BlockLoops, *inputs: torch.Tensor) -> torch.Tensor:
        arrays = [np.ascontiguousarray(each.detach().numpy()) for each in inputs]
        ctx.known = loops, arrays
        return torch.from_numpy(loops.forward(arrays))

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        loops, arrays = ctx.known
        if not any(ctx.needs_input_grad):
            return (None,) * (1 + len(arrays))
        found = loops.backward(arrays, np.ascontiguousarray(grad.detach().numpy()))
        return None, *(torch.from_numpy(each) for each in found)


@dataclass(slots=True)
class _SumOverBlock:
    block: Block
    aggregation: Aggregation
    edges: Edges
    sum: LoopedSum

    @classmethod
    def create(cls, block: Block, aggregation: Aggregation) -> _SumOverBlock:
        factors = scales(aggregation, block, _FLOAT)
        loop_scale = factors.own
        if loop_scale is not None and factors.source is not None:
            loop_scale = loop_scale / factors.source[: block.num_dst]
        edges = replace(
            _by_destination(block, has_loops=loop_scale is not None),
            factors=factors.edge,
            row_scale=factors.row,
            loop_scale=loop_scale,
        )
        return cls(block, aggregation, edges, LoopedSum(factors.source, loop_scale is not None))

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
        loop, _ = largest_loops(shape[1])
        edges = _by_destination(self.block, has_loops=False)
        run_loop(loop, edges, [inputs[0]], (out, self.winners), None, None)
        return out

    def backward(self, inputs: Sequence[Array], grad: Array) -> Sequence[Array]:
        out = empty_array(inputs[0].shape, _FLOAT)
        _, loop = largest_loops(grad.shape[1])
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
        run_attention_back(
            self._gather(inputs),
            *(self._edges, by_source, self._operands(inputs), self.saved, grad),
            (rows, source_scores, destination_scores),
            None,
        )
        return [rows, source_scores, destination_scores]

    def _gather(self, inputs: Sequence[Array]) -> Any:
        return looped_attention(self.heads, inputs[0].shape[1] // self.heads, self.slope, self.mask)

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


def aggregate_by_loops(block: Block, x: torch.Tensor, what: Aggregation) -> torch.Tensor:
    """Run `hyrt.nn.operators.aggregate.aggregate` over a relabelled block with float32 rows."""
    check_weights(what, block)
    if what.self_path == "concat":
        gathered = aggregate_by_loops(block, x, replace(what, self_path="none"))
        return torch.cat([x[: block.num_dst], gathered], 1)
    loops = _MaxOverBlock(block) if what.reduce == "max" else _SumOverBlock.create(block, what)
    return cast(torch.Tensor, _OverBlock.apply(loops, x))  # type: ignore[no-untyped-call]


def attend_by_loops(
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
