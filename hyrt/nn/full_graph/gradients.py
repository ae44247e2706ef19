"""Operators over full graphs as autograd functions on CPU tensors.

Each backward pass uses the same operators over the transpose, which reads edge tensors in place by edge id.
No edge tensor is copied, and no edge tensor of ones is created (GraphPy 6.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyrt.formatting import short_repr
from hyrt.graph.topology import Topology
from hyrt.nn.full_graph.aggregate import max_aggregate_backward_into, max_aggregate_into, spmm_into
from hyrt.nn.full_graph.attention import attend_backward_into, attend_into
from hyrt.nn.full_graph.edge_operators import (
    EdgePosition,
    Operation,
    broadcast_to_edges_into,
    combine_into,
    dot_into,
    reduce_edges_into,
    softmax_edges_backward_into,
    softmax_edges_into,
)
from hyrt.nn.operators.autograd import once_differentiable

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class SumScales:
    """Constant factors [V] of row sums, of sources and of a row's own x (self-loop); None if all are 1."""

    row: Array | None = None
    source: Array | None = None
    self_loop: Array | None = None

    __repr__ = short_repr


def as_array(x: Tensor) -> Array:
    """Return the data of a CPU tensor as a kernel argument, without a copy if the tensor is contiguous."""
    x = x.detach().contiguous()
    if x.dtype == torch.float16:
        x = x.view(torch.uint16)
    elif x.dtype == torch.bfloat16:
        x = x.view(torch.int16)
    array: Array = x.numpy()
    return array


def _empty_like(like: Tensor) -> Tensor:
    """Allocate a contiguous tensor with the shape and dtype of `like`; `as_array` returns a view of it."""
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def _edges(topology: Topology, transposed: bool) -> tuple[Array, Array, Array | None]:
    """Return indptr, columns and edge ids; None for consecutive ids."""
    if not transposed:
        return topology.indptr, topology.indices, None
    reverse = topology.transposed
    return reverse.indptr, reverse.indices, topology.transposed_edges


class _SumAggregate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Tensor | None, topology: Topology, scales: SumScales, transposed: bool
    ) -> Tensor:
        out = _empty_like(x)
        _sum_into(topology, transposed, as_array(x), as_array(out), weights, scales)
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weights)
        ctx.topology, ctx.scales, ctx.transposed = topology, scales, transposed
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weights = ctx.saved_tensors
        x_grad = weights_grad = None
        scales: SumScales = ctx.scales
        if ctx.needs_input_grad[0]:
            x_grad = _empty_like(grad)
            reverse = SumScales(scales.source, scales.row, scales.self_loop)
            _sum_into(ctx.topology, not ctx.transposed, as_array(grad), as_array(x_grad), weights, reverse)
        if ctx.needs_input_grad[1] and not x.shape[1]:
            weights_grad = torch.zeros_like(weights)
        elif ctx.needs_input_grad[1]:
            weights_grad = _empty_like(weights)
            heads = weights.shape[1]
            sum_rows, source_rows = (
                _scale_rows(t, scale).reshape(len(x), heads, -1)
                for t, scale in ((grad, scales.row), (x, scales.source))
            )
            ends: tuple[EdgePosition, EdgePosition] = (
                ("source", "destination") if ctx.transposed else ("destination", "source")
            )
            topology = ctx.topology
            dot_into(
                topology.indptr,
                topology.indices,
                as_array(sum_rows),
                as_array(source_rows),
                as_array(weights_grad),
                *ends,
            )
        return x_grad, weights_grad, None, None, None


def _scale_rows(x: Tensor, scale: Array | None) -> Tensor:
    return x if scale is None else x * torch.from_numpy(scale)[:, None]


def _sum_into(
    topology: Topology, transposed: bool, x: Array, out: Array, weights: Tensor | None, scales: SumScales
) -> None:
    factors: dict[str, Any] = {
        "row_scale": scales.row,
        "source_scale": scales.source,
        "self_scale": scales.self_loop,
    }
    if weights is None:
        edges = topology.transposed if transposed else topology
        spmm_into(edges.indptr, edges.indices, x, out, **factors)
    else:
        indptr, columns, ids = _edges(topology, transposed)
        spmm_into(indptr, columns, x, out, weights=as_array(weights), edge_ids=ids, **factors)


class _MaxAggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, topology: Topology) -> Tensor:
        out = _empty_like(x)
        winners = np.empty(x.shape, np.int32) if ctx.needs_input_grad[0] else None
        max_aggregate_into(topology.indptr, topology.indices, as_array(x), as_array(out), winners)
        ctx.topology, ctx.winners = topology, winners
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        out = _empty_like(grad)
        reverse = ctx.topology.transposed
        max_aggregate_backward_into(
            reverse.indptr, reverse.indices, as_array(grad), ctx.winners, as_array(out)
        )
        return out, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        topology: Topology,
        operation: Operation,
        left_at: EdgePosition,
        right_at: EdgePosition,
    ) -> Tensor:
        out = _combine_edges(topology, left, right, operation, left_at, right_at)
        products = operation in ("mul", "div")
        ctx.save_for_backward(
            left if operation == "mul" else None,
            right if products else None,
            out if operation == "div" else None,
        )
        ctx.topology, ctx.operation, ctx.places = topology, operation, (left_at, right_at)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        left, right, out = ctx.saved_tensors
        topology, (left_at, right_at) = ctx.topology, ctx.places
        left_grad = right_grad = None
        if ctx.needs_input_grad[0]:
            edge_grad = grad
            if ctx.operation in ("mul", "div"):
                edge_grad = _combine_edges(topology, grad, right, ctx.operation, "edge", right_at)
            left_grad = _sum_to_ends(topology, edge_grad, left_at)
        if ctx.needs_input_grad[1]:
            edge_grad = grad
            if ctx.operation == "mul":
                edge_grad = _combine_edges(topology, grad, left, "mul", "edge", left_at)
            elif ctx.operation == "div":
                edge_grad = _combine_edges(topology, grad * out, right, "div", "edge", right_at)
            right_grad = _sum_to_ends(topology, edge_grad, right_at)
            if ctx.operation in ("sub", "div"):
                right_grad = -right_grad
        return left_grad, right_grad, None, None, None, None


def _combine_edges(
    topology: Topology,
    left: Tensor,
    right: Tensor,
    operation: Operation,
    left_at: EdgePosition,
    right_at: EdgePosition,
) -> Tensor:
    out = left.new_empty((topology.num_edges, left.shape[1]))
    ends = (as_array(left), as_array(right), as_array(out))
    combine_into(topology.indptr, topology.indices, *ends, operation, left_at, right_at)
    return out


def _sum_to_ends(topology: Topology, edge_grad: Tensor, at: EdgePosition) -> Tensor:
    """Sum an edge tensor [E, f] over the edges of each vertex at the endpoint `at`."""
    if at == "edge":
        return edge_grad
    out = edge_grad.new_empty((topology.num_vertices, edge_grad.shape[1]))
    indptr, _, ids = _edges(topology, at == "source")
    reduce_edges_into(indptr, as_array(edge_grad), as_array(out), edge_ids=ids)
    return out


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        topology: Topology,
        left_at: EdgePosition,
        right_at: EdgePosition,
    ) -> Tensor:
        out = left.new_empty((topology.num_edges, left.shape[1]))
        ends = (as_array(left), as_array(right), as_array(out))
        dot_into(topology.indptr, topology.indices, *ends, left_at, right_at)
        ctx.save_for_backward(left, right)
        ctx.topology, ctx.places = topology, (left_at, right_at)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        left, right = ctx.saved_tensors
        left_at, right_at = ctx.places
        gradients = [
            _weighted_sum_to_ends(ctx.topology, grad, x, x_at, target) if needed else None
            for needed, x, x_at, target in zip(
                ctx.needs_input_grad, (right, left), (right_at, left_at), (left_at, right_at), strict=False
            )
        ]
        return (*gradients, None, None, None)


def _weighted_sum_to_ends(
    topology: Topology, grad: Tensor, x: Tensor, x_at: EdgePosition, target: EdgePosition
) -> Tensor:
    """Sum grad[e, h] x[h] over each vertex's edges at the endpoint `target`; x is [., H, d] at `x_at`."""
    heads, width = x.shape[1:]
    rows = x.reshape(len(x), heads * width)
    if {x_at, target} == {"source", "destination"}:
        out = _empty_like(rows)
        weights = grad.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        _sum_into(topology, target == "source", as_array(rows), as_array(out), weights, SumScales())
    else:
        wide = grad[:, :, None].expand(-1, -1, width).reshape(len(grad), heads * width)
        out = _sum_to_ends(topology, _combine_edges(topology, wide, rows, "mul", "edge", x_at), target)
    return out.view(-1, heads, width)


class _ReduceEdges(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, topology: Topology, largest: bool, dtype: torch.dtype) -> Tensor:
        out = values.new_empty((topology.num_vertices, values.shape[1]), dtype=dtype)
        winners = np.empty(out.shape, np.int64) if largest and ctx.needs_input_grad[0] else None
        reduce_edges_into(topology.indptr, as_array(values), as_array(out), largest=largest, winners=winners)
        ctx.topology, ctx.winners, ctx.dtype = topology, winners, values.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        edge_grad = grad.new_empty((ctx.topology.num_edges, grad.shape[1]), dtype=ctx.dtype)
        broadcast_to_edges_into(ctx.topology.indptr, as_array(grad), as_array(edge_grad), winners=ctx.winners)
        return edge_grad, None, None, None


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, topology: Topology) -> Tensor:
        out = _empty_like(scores)
        softmax_edges_into(topology.indptr, as_array(scores), as_array(out))
        ctx.save_for_backward(out)
        ctx.topology = topology
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        out = _empty_like(weights)
        softmax_edges_backward_into(ctx.topology.indptr, as_array(weights), as_array(grad), as_array(out))
        return out, None


class _AttendAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        p: Tensor,
        at_source: Tensor,
        at_destination: Tensor,
        topology: Topology,
        slope: float,
        loops: bool,
    ) -> Tensor:
        arguments = (as_array(p), as_array(at_source), as_array(at_destination))
        out = _empty_like(p)
        saved_results: list[Tensor] = []
        if any(ctx.needs_input_grad):
            saved_results = [_empty_like(at_source), _empty_like(out), _empty_like(at_source)]
        arrays = (
            topology.indptr,
            topology.indices,
            *arguments,
            as_array(out),
            *(as_array(t) for t in saved_results),
        )
        attend_into(*arrays, slope=slope, loops=loops)
        ctx.save_for_backward(p, at_source, at_destination, out, *saved_results)
        ctx.topology, ctx.options = topology, {"slope": slope, "loops": loops}
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        gradients = [_empty_like(t) for t in saved[:3]]
        reverse = ctx.topology.transposed
        arrays = [as_array(t) for t in (*saved, grad, *gradients)]
        attend_backward_into(reverse.indptr, reverse.indices, *arrays, **ctx.options)
        return (*gradients, None, None, None)


def sum_aggregate(
    topology: Topology, x: Tensor, weights: Tensor | None, scales: SumScales, *, transposed: bool
) -> Tensor:
    """Apply `spmm_into` over the edges or their transpose to x [V, f] with float weights [E, H]."""
    return cast(Tensor, _SumAggregate.apply(x, weights, topology, scales, transposed))  # type: ignore[no-untyped-call]


def max_aggregate(topology: Topology, x: Tensor) -> Tensor:
    """Apply `max_aggregate_into` to x [V, f]."""
    return cast(Tensor, _MaxAggregate.apply(x, topology))  # type: ignore[no-untyped-call]


def combine(
    topology: Topology,
    left: Tensor,
    right: Tensor,
    operation: Operation,
    left_at: EdgePosition,
    right_at: EdgePosition,
) -> Tensor:
    """Apply `combine_into` to operands of equal width and dtype."""
    places = (operation, left_at, right_at)
    return cast(Tensor, _Combine.apply(left, right, topology, *places))  # type: ignore[no-untyped-call]


def dot(
    topology: Topology, left: Tensor, right: Tensor, left_at: EdgePosition, right_at: EdgePosition
) -> Tensor:
    """Apply `dot_into` to operands [., H, d] of equal dtype."""
    return cast(Tensor, _Dot.apply(left, right, topology, left_at, right_at))  # type: ignore[no-untyped-call]


def reduce_edges(topology: Topology, values: Tensor, *, largest: bool, dtype: torch.dtype) -> Tensor:
    """Apply `reduce_edges_into` to values [E, f]; the result has the given dtype."""
    return cast(Tensor, _ReduceEdges.apply(values, topology, largest, dtype))  # type: ignore[no-untyped-call]


def softmax_edges(topology: Topology, scores: Tensor) -> Tensor:
    """Apply `softmax_edges_into` to scores [E, H], float32 or float64."""
    return cast(Tensor, _EdgeSoftmax.apply(scores, topology))  # type: ignore[no-untyped-call]


def attend_all(
    topology: Topology, p: Tensor, at_source: Tensor, at_destination: Tensor, *, slope: float, loops: bool
) -> Tensor:
    """Apply `attend_into` to p [V, H, d], and scores [V, H] with the dtype of the sums."""
    arguments = (p, at_source, at_destination, topology, slope, loops)
    return cast(Tensor, _AttendAll.apply(*arguments))  # type: ignore[no-untyped-call]
