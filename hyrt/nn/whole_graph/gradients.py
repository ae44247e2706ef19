"""The operators over whole graphs as autograd functions on CPU tensors.

Each backward pass is made of the same operators over the transpose, which reads edge tensors by edge number
where they lie: no copy of one is made, and no edge tensor of ones (GraphPy 6.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyrt.graph.topology import Topology
from hyrt.nn.operators.first_derivative import first_derivative
from hyrt.nn.whole_graph.attention import attend_backward_into, attend_into
from hyrt.nn.whole_graph.edge_rows import (
    reduce_edges_into,
    softmax_edges_backward_into,
    softmax_edges_into,
    spread_into,
)
from hyrt.nn.whole_graph.edges import At, Operation, combine_into, dot_into
from hyrt.nn.whole_graph.maximum import largest_backward_into, largest_into
from hyrt.nn.whole_graph.spmm import spmm_into
from hyrt.quantities import one_line

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class SumScales:
    """Constant factors of a sum, [V] each or None: of its rows, of the sources, and of a row's own x."""

    row: Array | None = None
    source: Array | None = None
    own: Array | None = None

    __repr__ = one_line


def bits(x: Tensor) -> Array:
    """The elements of a CPU tensor as the compiled loops take them, without a copy where it is contiguous."""
    x = x.detach().contiguous()
    if x.dtype == torch.float16:
        x = x.view(torch.uint16)
    elif x.dtype == torch.bfloat16:
        x = x.view(torch.int16)
    array: Array = x.numpy()
    return array


def _room(like: Tensor) -> Tensor:
    """Memory for a result of a tensor's shape and dtype, whose `bits` are no copy however the tensor lies."""
    return torch.empty_like(like, memory_format=torch.contiguous_format)


def _edges(topology: Topology, transposed: bool) -> tuple[Array, Array, Array | None]:
    """indptr, columns and, only where they are not consecutive, edge numbers."""
    if not transposed:
        return topology.indptr, topology.indices, None
    turned = topology.transposed
    return turned.indptr, turned.indices, topology.transposed_edges


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Tensor | None, topology: Topology, scales: SumScales, transposed: bool
    ) -> Tensor:
        out = _room(x)
        _sum_into(topology, transposed, bits(x), bits(out), weights, scales)
        ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weights)
        ctx.topology, ctx.scales, ctx.transposed = topology, scales, transposed
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weights = ctx.saved_tensors
        by_x = by_weights = None
        scales: SumScales = ctx.scales
        if ctx.needs_input_grad[0]:
            by_x = _room(grad)
            turned = SumScales(scales.source, scales.row, scales.own)
            _sum_into(ctx.topology, not ctx.transposed, bits(grad), bits(by_x), weights, turned)
        if ctx.needs_input_grad[1] and not x.shape[1]:
            by_weights = torch.zeros_like(weights)
        elif ctx.needs_input_grad[1]:
            by_weights = _room(weights)
            heads = weights.shape[1]
            of_sum, of_source = (
                _times(t, scale).reshape(len(x), heads, -1)
                for t, scale in ((grad, scales.row), (x, scales.source))
            )
            ends: tuple[At, At] = ("source", "destination") if ctx.transposed else ("destination", "source")
            topology = ctx.topology
            dot_into(
                topology.indptr, topology.indices, bits(of_sum), bits(of_source), bits(by_weights), *ends
            )
        return by_x, by_weights, None, None, None


def _times(x: Tensor, scale: Array | None) -> Tensor:
    return x if scale is None else x * torch.from_numpy(scale)[:, None]


def _sum_into(
    topology: Topology, transposed: bool, x: Array, out: Array, weights: Tensor | None, scales: SumScales
) -> None:
    factors: dict[str, Any] = {
        "row_scale": scales.row,
        "source_scale": scales.source,
        "self_scale": scales.own,
    }
    if weights is None:
        edges = topology.transposed if transposed else topology
        spmm_into(edges.indptr, edges.indices, x, out, **factors)
    else:
        indptr, columns, ids = _edges(topology, transposed)
        spmm_into(indptr, columns, x, out, weights=bits(weights), edge_ids=ids, **factors)


class _Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, topology: Topology) -> Tensor:
        out = _room(x)
        winners = np.empty(x.shape, np.int32) if ctx.needs_input_grad[0] else None
        largest_into(topology.indptr, topology.indices, bits(x), bits(out), winners)
        ctx.topology, ctx.winners = topology, winners
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        out = _room(grad)
        turned = ctx.topology.transposed
        largest_backward_into(turned.indptr, turned.indices, bits(grad), ctx.winners, bits(out))
        return out, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        topology: Topology,
        operation: Operation,
        left_at: At,
        right_at: At,
    ) -> Tensor:
        out = _combined(topology, left, right, operation, left_at, right_at)
        products = operation in ("mul", "div")
        ctx.save_for_backward(
            left if operation == "mul" else None,
            right if products else None,
            out if operation == "div" else None,
        )
        ctx.topology, ctx.operation, ctx.places = topology, operation, (left_at, right_at)
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        left, right, out = ctx.saved_tensors
        topology, (left_at, right_at) = ctx.topology, ctx.places
        by_left = by_right = None
        if ctx.needs_input_grad[0]:
            along = grad
            if ctx.operation in ("mul", "div"):
                along = _combined(topology, grad, right, ctx.operation, "edge", right_at)
            by_left = _back_to(topology, along, left_at)
        if ctx.needs_input_grad[1]:
            along = grad
            if ctx.operation == "mul":
                along = _combined(topology, grad, left, "mul", "edge", left_at)
            elif ctx.operation == "div":
                along = _combined(topology, grad * out, right, "div", "edge", right_at)
            by_right = _back_to(topology, along, right_at)
            if ctx.operation in ("sub", "div"):
                by_right = -by_right
        return by_left, by_right, None, None, None, None


def _combined(
    topology: Topology, left: Tensor, right: Tensor, operation: Operation, left_at: At, right_at: At
) -> Tensor:
    out = left.new_empty((topology.num_edges, left.shape[1]))
    ends = (bits(left), bits(right), bits(out))
    combine_into(topology.indptr, topology.indices, *ends, operation, left_at, right_at)
    return out


def _back_to(topology: Topology, along: Tensor, at: At) -> Tensor:
    """Sums of an edge tensor [E, f] at the end of the edges that had been read."""
    if at == "edge":
        return along
    out = along.new_empty((topology.num_vertices, along.shape[1]))
    indptr, _, ids = _edges(topology, at == "source")
    reduce_edges_into(indptr, bits(along), bits(out), edge_ids=ids)
    return out


class _Dot(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, topology: Topology, left_at: At, right_at: At
    ) -> Tensor:
        out = left.new_empty((topology.num_edges, left.shape[1]))
        ends = (bits(left), bits(right), bits(out))
        dot_into(topology.indptr, topology.indices, *ends, left_at, right_at)
        ctx.save_for_backward(left, right)
        ctx.topology, ctx.places = topology, (left_at, right_at)
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        left, right = ctx.saved_tensors
        left_at, right_at = ctx.places
        found = [
            _weighted_back(ctx.topology, grad, x, x_at, to) if needed else None
            for needed, x, x_at, to in zip(
                ctx.needs_input_grad, (right, left), (right_at, left_at), (left_at, right_at), strict=False
            )
        ]
        return (*found, None, None, None)


def _weighted_back(topology: Topology, grad: Tensor, x: Tensor, x_at: At, to: At) -> Tensor:
    """Sums at one end of grad[e, h] x[h], with x [., H, d] found at another."""
    heads, width = x.shape[1:]
    rows = x.reshape(len(x), heads * width)
    if {x_at, to} == {"source", "destination"}:
        out = _room(rows)
        weights = grad.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
        _sum_into(topology, to == "source", bits(rows), bits(out), weights, SumScales())
    else:
        wide = grad[:, :, None].expand(-1, -1, width).reshape(len(grad), heads * width)
        out = _back_to(topology, _combined(topology, wide, rows, "mul", "edge", x_at), to)
    return out.view(-1, heads, width)


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, topology: Topology, largest: bool, dtype: torch.dtype) -> Tensor:
        out = values.new_empty((topology.num_vertices, values.shape[1]), dtype=dtype)
        winners = np.empty(out.shape, np.int64) if largest and ctx.needs_input_grad[0] else None
        reduce_edges_into(topology.indptr, bits(values), bits(out), largest=largest, winners=winners)
        ctx.topology, ctx.winners, ctx.dtype = topology, winners, values.dtype
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        along = grad.new_empty((ctx.topology.num_edges, grad.shape[1]), dtype=ctx.dtype)
        spread_into(ctx.topology.indptr, bits(grad), bits(along), winners=ctx.winners)
        return along, None, None, None


class _SoftmaxOfEdges(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, topology: Topology) -> Tensor:
        out = _room(scores)
        softmax_edges_into(topology.indptr, bits(scores), bits(out))
        ctx.save_for_backward(out)
        ctx.topology = topology
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        out = _room(weights)
        softmax_edges_backward_into(ctx.topology.indptr, bits(weights), bits(grad), bits(out))
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
        given = (bits(p), bits(at_source), bits(at_destination))
        out = _room(p)
        kept: list[Tensor] = []
        if any(ctx.needs_input_grad):
            kept = [_room(at_source), _room(out), _room(at_source)]
        arrays = (topology.indptr, topology.indices, *given, bits(out), *(bits(t) for t in kept))
        attend_into(*arrays, slope=slope, loops=loops)
        ctx.save_for_backward(p, at_source, at_destination, out, *kept)
        ctx.topology, ctx.options = topology, {"slope": slope, "loops": loops}
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        found = [_room(t) for t in saved[:3]]
        turned = ctx.topology.transposed
        arrays = [bits(t) for t in (*saved, grad, *found)]
        attend_backward_into(turned.indptr, turned.indices, *arrays, **ctx.options)
        return (*found, None, None, None)


def sum_of_sources(
    topology: Topology, x: Tensor, weights: Tensor | None, scales: SumScales, *, transposed: bool
) -> Tensor:
    """`spmm_into` over the edges or their transpose: x [V, f], weights [E, H] float32 or float64."""
    return cast(Tensor, _Sum.apply(x, weights, topology, scales, transposed))  # type: ignore[no-untyped-call]


def largest_of_sources(topology: Topology, x: Tensor) -> Tensor:
    """`largest_into` of x [V, f]."""
    return cast(Tensor, _Largest.apply(x, topology))  # type: ignore[no-untyped-call]


def combine(
    topology: Topology, left: Tensor, right: Tensor, operation: Operation, left_at: At, right_at: At
) -> Tensor:
    """`combine_into` of rows of equal width and dtype."""
    places = (operation, left_at, right_at)
    return cast(Tensor, _Combine.apply(left, right, topology, *places))  # type: ignore[no-untyped-call]


def dot(topology: Topology, left: Tensor, right: Tensor, left_at: At, right_at: At) -> Tensor:
    """`dot_into` of rows [., H, d] of one dtype."""
    return cast(Tensor, _Dot.apply(left, right, topology, left_at, right_at))  # type: ignore[no-untyped-call]


def reduce_edges(topology: Topology, values: Tensor, *, largest: bool, dtype: torch.dtype) -> Tensor:
    """`reduce_edges_into` of values [E, f], with results of a dtype."""
    return cast(Tensor, _Reduce.apply(values, topology, largest, dtype))  # type: ignore[no-untyped-call]


def softmax_edges(topology: Topology, scores: Tensor) -> Tensor:
    """`softmax_edges_into` of scores [E, H], float32 or float64."""
    return cast(Tensor, _SoftmaxOfEdges.apply(scores, topology))  # type: ignore[no-untyped-call]


def attend_all(
    topology: Topology, p: Tensor, at_source: Tensor, at_destination: Tensor, *, slope: float, loops: bool
) -> Tensor:
    """`attend_into` of p [V, H, d] and scores [V, H] of the dtype that is summed in."""
    given = (p, at_source, at_destination, topology, slope, loops)
    return cast(Tensor, _AttendAll.apply(*given))  # type: ignore[no-untyped-call]
