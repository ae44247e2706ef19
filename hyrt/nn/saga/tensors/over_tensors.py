"""A layer's gathering over a block of tensors: by the device's loops, or all edges at once by torch."""

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
    """[num_dst, width] what the destinations of a block gather, differentiable.

    Parameters
    ----------
    program
        The layer's `apply_edge`.
    layer
        The layer.
    block
        The edges.
    x
        [num_src, in] the rows of its sources.
    loops
        Whether destinations have an edge from themselves besides their own.
    """
    factors = _factors(program, block, x.dtype, loops=loops)
    edges = _with_loops(block) if loops else block
    rows = {"source": x, "destination": x[: block.num_dst]}
    degrees = {"source": block.source_degrees, "destination": block.degrees}
    found: dict[Given, torch.Tensor] = {}
    ends: tuple[End, End] = ("source", "destination")
    for end in ends:
        plain = program.of_end(end)
        fixed = program.of_end(end, fixed=True)
        column = degrees[end].to(x.dtype)[:, None]
        values = [*program.rows(layer, rows[end], end), *program.degree_rows(layer, column, end)]
        found |= dict(zip([*plain, *fixed], values, strict=True))
    columns = {
        name: _edge_rows(name, values.to(x.dtype).reshape(block.num_edges, -1), block, loops=loops)
        for name, values in edge_columns(program, layer, block).items()
    }
    found |= dict(zip(program.of_end("edge", fixed=True), program.edge_rows(layer, columns), strict=True))
    if block.loops is not None and program.fused is not None and x.dtype in (torch.float32, torch.float64):
        found |= dict(zip(program.of_end("shared"), program.shared(layer), strict=True))
        flat = None if factors is None else factors[:, 0].contiguous()
        return gather_fused(
            FusedOverTensors(program.fused, block.loops, edges, flat), [found[each] for each in program.given]
        )
    given = {}
    for each, value in found.items():
        # Torch spreads by itself what was spread over heads for the loops.
        along = value[:, : math.prod(each.shape)]
        if each.end != "edge":
            along = (from_sources if each.end == "source" else from_destinations)(edges, along)
        given[each.node] = along.reshape(-1, *each.shape)
    if program.slots:
        counts = edges.indptr[1:] - edges.indptr[:-1]
        check_slots(layer, program.slots, counts.cpu().numpy(), edges.destinations.cpu().numpy())
    return combine(program.accumulate, program.edge_values(layer, given), edges, factors, program.slots)


def _edge_rows(name: str, values: torch.Tensor, block: TensorBlock, *, loops: bool) -> torch.Tensor:
    """[E, ...] what edges have, those from vertices to themselves among them; see
    `edge_columns.loop_rows`.
    """
    if not loops:
        return values
    own = values.new_ones(block.num_dst, 1)
    if name == "data":
        counts = (block.indptr[1:] - block.indptr[:-1]).clamp(min=1)
        own = to_destinations(block, values) / counts[:, None]
    found = values.new_empty(len(values) + block.num_dst, values.shape[1])
    found[_places(block)] = values
    found[(block.indptr[:-1] + torch.arange(block.num_dst, device=found.device)).long()] = own
    return found


def _with_loops(block: TensorBlock) -> TensorBlock:
    """The block with an edge from each destination to itself before its others."""
    there = block.derived.with_loops
    if there is not None:
        return there
    number = torch.arange(block.num_dst, device=block.columns.device, dtype=block.columns.dtype)
    shift = torch.arange(block.num_dst + 1, device=block.indptr.device, dtype=block.indptr.dtype)
    indptr = block.indptr + shift
    columns = block.columns.new_empty(block.num_edges + block.num_dst)
    columns[indptr[:-1].long()] = number
    columns[_places(block)] = block.columns
    found = replace(
        block,
        indptr=indptr,
        columns=columns,
        weights=None,
        edge_weights=None,
        aggregate=None,
        derived=Derived(),
    )
    block.derived.with_loops = found
    return found


def _places(block: TensorBlock) -> torch.Tensor:
    """[E] where each edge is in the block with loops."""
    return torch.arange(block.num_edges, device=block.columns.device) + block.rows() + 1


def _factors(
    program: EdgeProgram, block: TensorBlock, dtype: torch.dtype, *, loops: bool
) -> torch.Tensor | None:
    """[E, 1] what messages are multiplied by, as in `hyrt.nn.saga.blocks.block_gathering.edges_of_block`."""
    if program.accumulate not in ("sum", "mean"):
        return None
    weighted = block.weights is not None
    counts = (block.degrees if weighted else block.indptr[1:] - block.indptr[:-1]).to(dtype)
    if program.accumulate == "sum":
        row, own = block.degrees.to(dtype) / counts.clamp(min=1), torch.ones_like(counts)
    else:
        row = own = 1 / (counts + int(loops)).clamp(min=1)
    along = row.index_select(0, block.rows())
    if block.weights is not None:
        along = along * block.weights.to(dtype)
    if not loops:
        return along[:, None]
    found = along.new_empty(len(along) + block.num_dst)
    found[_places(block)] = along
    found[(block.indptr[:-1] + torch.arange(block.num_dst, device=found.device)).long()] = own
    return found[:, None]
