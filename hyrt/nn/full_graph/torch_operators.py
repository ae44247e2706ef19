"""Full-graph operators composed of torch operators, for all torch devices."""

from __future__ import annotations

import operator

import torch
from torch import Tensor
from torch.nn import functional

from hyrt.graph.topology import Topology
from hyrt.nn.full_graph.edge_operators import EdgePosition, Operation
from hyrt.nn.full_graph.gradients import SumScales
from hyrt.nn.operators.tensor_ops import (
    TensorBlock,
    aggregate_max,
    gather_destinations,
    gather_sources,
    scatter_to_destinations,
    segment_max,
)

_OPERATIONS = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}


def get_device_block(topology: Topology, device: torch.device) -> TensorBlock:
    """Return the full graph as one block on a device, cached in the topology."""
    # A topology is frozen, but its instance dictionary caches derived values such as the transpose.
    cached: dict[torch.device, TensorBlock] = vars(topology).setdefault("_blocks_on", {})
    if device not in cached:
        degrees = torch.from_numpy(topology.in_degrees).to(device)
        cached[device] = TensorBlock(
            indptr=torch.from_numpy(topology.indptr).to(device),
            columns=torch.from_numpy(topology.indices).to(device),
            sources=torch.arange(topology.num_vertices, device=device),
            num_dst=topology.num_vertices,
            degrees=degrees,
            source_degrees=degrees,
            layer=1,
        )
    return cached[device]


def _to_sum_dtype(x: Tensor) -> Tensor:
    """Convert 16-bit rows to float32, the dtype of their sums."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def sum_aggregate(
    topology: Topology, x: Tensor, weights: Tensor | None, scales: SumScales, *, transposed: bool
) -> Tensor:
    edges = topology.transposed if transposed else topology
    block = get_device_block(edges, x.device)
    wide = _to_sum_dtype(x)
    row, source, self_loop = (
        None if scale is None else torch.from_numpy(scale).to(x.device)[:, None]
        for scale in (scales.row, scales.source, scales.self_loop)
    )
    edge_values = gather_sources(block, wide if source is None else wide * source)
    if weights is not None:
        if transposed:
            weights = weights[torch.from_numpy(topology.transposed_edges).to(x.device)]
        heads = weights.shape[1]
        head_rows = edge_values.view(len(edge_values), heads, edge_values.shape[1] // heads)
        edge_values = (head_rows * weights[:, :, None]).view(edge_values.shape)
    total = scatter_to_destinations(block, edge_values)
    if row is not None:
        total = total * row
    if self_loop is not None:
        total = total + wide * self_loop
    return total.to(x.dtype)


def max_aggregate(topology: Topology, x: Tensor) -> Tensor:
    return aggregate_max(get_device_block(topology, x.device), x)


def _edge_rows(block: TensorBlock, x: Tensor, at: EdgePosition) -> Tensor:
    if at == "edge":
        return x
    return gather_sources(block, x) if at == "source" else gather_destinations(block, x)


def combine(
    topology: Topology,
    left: Tensor,
    right: Tensor,
    operation: Operation,
    left_at: EdgePosition,
    right_at: EdgePosition,
) -> Tensor:
    block = get_device_block(topology, left.device)
    result: Tensor = _OPERATIONS[operation](
        _edge_rows(block, left, left_at), _edge_rows(block, right, right_at)
    )
    return result


def dot(
    topology: Topology, left: Tensor, right: Tensor, left_at: EdgePosition, right_at: EdgePosition
) -> Tensor:
    block = get_device_block(topology, left.device)
    products = _to_sum_dtype(_edge_rows(block, left, left_at)) * _to_sum_dtype(
        _edge_rows(block, right, right_at)
    )
    return products.sum(2).to(left.dtype)


def reduce_edges(topology: Topology, values: Tensor, *, largest: bool, dtype: torch.dtype) -> Tensor:
    block, values = get_device_block(topology, values.device), values.to(dtype)
    if not largest:
        return scatter_to_destinations(block, values)
    _, winners = segment_max(values.detach(), block.indptr)
    if not len(values):
        return values.new_zeros(winners.shape)
    return torch.where(winners < 0, 0, values.gather(0, winners.clamp(min=0)))


def softmax_edges(topology: Topology, scores: Tensor) -> Tensor:
    block = get_device_block(topology, scores.device)
    # Subtracting the maximum does not change the softmax, so the maximum needs no gradient.
    top, _ = segment_max(scores.detach(), block.indptr)
    weights = (scores - gather_destinations(block, top)).exp()
    return weights / gather_destinations(block, scatter_to_destinations(block, weights))


def attend_all(
    topology: Topology, p: Tensor, at_source: Tensor, at_destination: Tensor, *, slope: float, loops: bool
) -> Tensor:
    block = get_device_block(topology, p.device)
    edge_values = gather_sources(block, at_source) + gather_destinations(block, at_destination)
    edge_values = functional.leaky_relu(edge_values, negative_slope=slope)
    self_loop = functional.leaky_relu(at_source + at_destination, negative_slope=slope)
    with torch.no_grad():
        best, winners = segment_max(edge_values, block.indptr)
        top = torch.where(winners < 0, self_loop, torch.maximum(best, self_loop)) if loops else best
    weights = (edge_values - gather_destinations(block, top)).exp()
    total = scatter_to_destinations(block, weights)
    rows = p.to(weights.dtype)
    out = scatter_to_destinations(block, weights[:, :, None] * gather_sources(block, rows))
    if loops:
        self_loop = (self_loop - top).exp()
        total, out = total + self_loop, out + self_loop[:, :, None] * rows
    return (out / torch.where(total == 0, 1, total)[:, :, None]).to(p.dtype)
