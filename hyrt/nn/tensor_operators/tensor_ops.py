"""Layer operators over tensor blocks in terms of torch's operators, for every torch device.

Each computes the same function as its compiled counterpart for host memory, and dropout masks are equal bit
for bit.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from hyrt.machine.generator import GOLDEN
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.operators.attention_mask import HEADS_OF_DRAW, AttentionMask
from hyrt.nn.tensor_operators.segments import (
    from_destinations,
    from_sources,
    max_of_sources,
    segment_max,
    to_destinations,
)
from hyrt.nn.tensor_operators.tensor_block import TensorBlock


def tensor_scales(
    aggregation: Aggregation, block: TensorBlock, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Return factors of rows [num_dst], sources [num_src], self-loops [num_dst] and edges [E].

    See `hyrt.nn.operators.aggregate.scales`.
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
        total = max_of_sources(block, x)
    else:
        row, source, self_loop, edge = tensor_scales(aggregation, block, x.dtype)
        edge_values = from_sources(block, x if source is None else x * source[:, None])
        if edge is not None:
            edge_values = edge_values * edge.to(x.dtype)[:, None]
        total = to_destinations(block, edge_values) * row[:, None]
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
        from_sources(block, at_source) + from_destinations(block, offset), negative_slope=slope
    )
    self_loop = functional.leaky_relu(at_source[:num] + offset, negative_slope=slope)
    with torch.no_grad():
        # A constant of the softmax: it changes no value and needs no gradient.
        best, winners = segment_max(edge_values, block.indptr)
        top = torch.where(winners < 0, self_loop, torch.maximum(best, self_loop))
    weight = (edge_values - from_destinations(block, top)).exp()
    self_weight = (self_loop - top).exp()
    total = self_weight + to_destinations(block, weight)
    if mask is not None:
        vertices, num_heads = block.destinations.long(), len(u_src)
        ends = block.sources.long()[block.columns.long()], from_destinations(block, vertices)
        weight = weight * _attention_factors(mask, *ends, num_heads).to(weight.dtype)
        self_weight = self_weight * _attention_factors(mask, vertices, vertices, num_heads).to(weight.dtype)
    shared = from_sources(block, slices[:, 0]) if slices.shape[1] == 1 else None
    heads = []
    for h in range(len(u_src)):
        rows = slices[:, 0] if shared is not None else slices[:, h]
        neighbors = shared if shared is not None else from_sources(block, rows)
        summed = to_destinations(block, weight[:, h, None] * neighbors)
        heads.append((self_weight[:, h, None] * rows[:num] + summed) / total[:, h, None])
    return torch.stack(heads)


def linear_tensors(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, relu: bool, low_precision: bool
) -> torch.Tensor:
    """Compute `hyrt.nn.operators.product.linear`, which checks the arguments, with torch's operators."""
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


def kept_elements(vertices: torch.Tensor, width: int, key: np.uint64, threshold: int) -> torch.Tensor:
    """Return the mask of `hyrt.nn.operators.kernels.drop`, bit for bit: True for the elements that remain.

    Parameters
    ----------
    vertices
        [n] integers.
    width
        Columns f.
    key
        The key from `hyrt.machine.generator.stream_key`.
    threshold
        An element is dropped if its 16 bits are below the threshold.

    Returns
    -------
    [n, f] bool.
    """
    stream = _mix64((vertices.long() + 1) * _GOLDEN + _signed(int(key)))
    groups = torch.arange(1, -(-width // 4) + 1, device=vertices.device) * _GOLDEN
    bits = _mix64(stream[:, None] + groups)
    lanes = torch.stack([(bits >> 16 * lane) & 0xFFFF for lane in range(4)], 2)
    return lanes.view(len(vertices), -1)[:, :width] >= threshold


def _attention_factors(
    mask: AttentionMask, sources: torch.Tensor, destinations: torch.Tensor, heads: int
) -> torch.Tensor:
    """Return [E, heads] float64 factors, as `hyrt.nn.operators.attention_mask.mask_edge` bit for bit."""
    groups = -(-heads // HEADS_OF_DRAW)
    stream = _mix64((destinations + 1) * _GOLDEN + _signed(int(mask.key)))
    counters = sources[:, None] * groups + torch.arange(groups, device=sources.device)
    bits = _mix64(stream[:, None] + (counters + 1) * _GOLDEN)
    lanes = torch.stack([(bits >> 16 * lane) & 0xFFFF for lane in range(4)], 2)
    keep = lanes.flatten(1)[:, :heads] >= int(mask.threshold)
    return keep.double() * mask.scale


def drop_tensors(
    x: torch.Tensor, vertices: torch.Tensor, key: np.uint64, threshold: int, scale: float
) -> torch.Tensor:
    """Multiply the elements of `kept_elements` by `scale` and zero the others; differentiable."""
    keep = kept_elements(vertices, x.shape[1], key, threshold)
    return torch.where(keep, x * scale, 0)
