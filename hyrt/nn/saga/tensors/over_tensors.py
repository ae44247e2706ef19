"""Gather of a layer over a block of tensors: by the device's loops, or by torch for all edges at once."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import nn

from hyrt.nn.fused.form import End
from hyrt.nn.saga.combining import check_slots, combine
from hyrt.nn.saga.edge_columns import edge_columns
from hyrt.nn.saga.program import EdgeProgram, Given
from hyrt.nn.saga.tensors.fused_over_tensors import FusedOverTensors, gather_fused
from hyrt.nn.tensor_operators.segments import from_destinations, from_sources, to_destinations
from hyrt.nn.tensor_operators.tensor_block import Derived, TensorBlock


def gather_over_tensors(
    program: EdgeProgram, layer: nn.Module, block: TensorBlock, x: torch.Tensor, *, loops: bool
) -> torch.Tensor:
    """Return the gathered rows [num_dst, width] of a block, differentiable.

    Parameters
    ----------
    program
        The traced `apply_edge` of the layer.
    layer
        The layer.
    block
        The edges.
    x
        [num_src, in], the source rows.
    loops
        Whether destinations have a self-loop in addition to their edges.
    """
    factors = _factors(program, block, x.dtype, loops=loops)
    edges = _with_loops(block) if loops else block
    rows = {"source": x, "destination": x[: block.num_dst]}
    degrees = {"source": block.source_degrees, "destination": block.degrees}
    inputs: dict[Given, torch.Tensor] = {}
    ends: tuple[End, End] = ("source", "destination")
    for end in ends:
        plain = program.of_end(end)
        fixed = program.of_end(end, fixed=True)
        column = degrees[end].to(x.dtype)[:, None]
        values = [*program.rows(layer, rows[end], end), *program.degree_rows(layer, column, end)]
        inputs |= dict(zip([*plain, *fixed], values, strict=True))
    columns = {
        name: _edge_rows(name, values.to(x.dtype).reshape(block.num_edges, -1), block, loops=loops)
        for name, values in edge_columns(program, layer, block).items()
    }
    inputs |= dict(zip(program.of_end("edge", fixed=True), program.edge_rows(layer, columns), strict=True))
    if block.loops is not None and program.fused is not None and x.dtype in (torch.float32, torch.float64):
        inputs |= dict(zip(program.of_end("shared"), program.shared(layer), strict=True))
        flat = None if factors is None else factors[:, 0].contiguous()
        return gather_fused(
            FusedOverTensors(program.fused, block.loops, edges, flat),
            [inputs[value] for value in program.given],
        )
    edge_inputs = {}
    for item, value in inputs.items():
        # torch broadcasts over heads itself, unlike the loops.
        rows_of_edges = value[:, : math.prod(item.shape)]
        if item.end != "edge":
            gather = from_sources if item.end == "source" else from_destinations
            rows_of_edges = gather(edges, rows_of_edges)
        edge_inputs[item.node] = rows_of_edges.reshape(-1, *item.shape)
    if program.slots:
        counts = edges.indptr[1:] - edges.indptr[:-1]
        check_slots(layer, program.slots, counts.cpu().numpy(), edges.destinations.cpu().numpy())
    return combine(program.accumulate, program.edge_values(layer, edge_inputs), edges, factors, program.slots)


def _edge_rows(name: str, values: torch.Tensor, block: TensorBlock, *, loops: bool) -> torch.Tensor:
    """Return edge values [E, ...] including self-loops; see `edge_columns.loop_rows`."""
    if not loops:
        return values
    loop_values = values.new_ones(block.num_dst, 1)
    if name == "data":
        counts = (block.indptr[1:] - block.indptr[:-1]).clamp(min=1)
        loop_values = to_destinations(block, values) / counts[:, None]
    result = values.new_empty(len(values) + block.num_dst, values.shape[1])
    result[_edge_positions(block)] = values
    result[(block.indptr[:-1] + torch.arange(block.num_dst, device=result.device)).long()] = loop_values
    return result


def _with_loops(block: TensorBlock) -> TensorBlock:
    """Return the block with a self-loop before the other edges of each destination."""
    cached = block.derived.with_loops
    if cached is not None:
        return cached
    number = torch.arange(block.num_dst, device=block.columns.device, dtype=block.columns.dtype)
    shift = torch.arange(block.num_dst + 1, device=block.indptr.device, dtype=block.indptr.dtype)
    indptr = block.indptr + shift
    columns = block.columns.new_empty(block.num_edges + block.num_dst)
    columns[indptr[:-1].long()] = number
    columns[_edge_positions(block)] = block.columns
    with_loops = replace(
        block,
        indptr=indptr,
        columns=columns,
        weights=None,
        edge_weights=None,
        aggregate=None,
        derived=Derived(),
    )
    block.derived.with_loops = with_loops
    return with_loops


def _edge_positions(block: TensorBlock) -> torch.Tensor:
    """Return [E], the position of each edge in the block with self-loops."""
    return torch.arange(block.num_edges, device=block.columns.device) + block.rows() + 1


def _factors(
    program: EdgeProgram, block: TensorBlock, dtype: torch.dtype, *, loops: bool
) -> torch.Tensor | None:
    """Return [E, 1], the factors of messages, as in `block_gathering.edges_of_block`; None for 1."""
    if program.accumulate not in ("sum", "mean"):
        return None
    weighted = block.weights is not None
    counts = (block.degrees if weighted else block.indptr[1:] - block.indptr[:-1]).to(dtype)
    if program.accumulate == "sum":
        row, loop = block.degrees.to(dtype) / counts.clamp(min=1), torch.ones_like(counts)
    else:
        row = loop = 1 / (counts + int(loops)).clamp(min=1)
    factors = row.index_select(0, block.rows())
    if block.weights is not None:
        factors = factors * block.weights.to(dtype)
    if not loops:
        return factors[:, None]
    result = factors.new_empty(len(factors) + block.num_dst)
    result[_edge_positions(block)] = factors
    result[(block.indptr[:-1] + torch.arange(block.num_dst, device=result.device)).long()] = loop
    return result[:, None]
