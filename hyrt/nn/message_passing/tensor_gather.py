"""Differentiable gathers over a block of tensors, in fused loops on the device or with torch operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import nn

from hyrt.formatting import short_repr
from hyrt.nn.fused.c_codegen import LoopCall, TensorLoops
from hyrt.nn.fused.edge_loop import EdgeLoop, End
from hyrt.nn.fused.fused_gather import FusedGather
from hyrt.nn.message_passing.gather import read_edge_columns
from hyrt.nn.message_passing.program import EdgeInput, EdgeProgram, check_slots, combine
from hyrt.nn.operators.autograd import once_differentiable
from hyrt.nn.operators.tensor_ops import (
    DerivedEdges,
    TensorBlock,
    gather_destinations,
    gather_sources,
    scatter_to_destinations,
)


@dataclass(frozen=True, slots=True)
class FusedTensorGather:
    """Fused gather along the edges of a block and its self-loops."""

    fused: FusedGather
    loops: TensorLoops
    block: TensorBlock
    factors: torch.Tensor | None
    """Factors of the edges [E]; None if all are 1."""

    __repr__ = short_repr

    def forward(
        self, operands: Sequence[torch.Tensor], *, keep: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the gathered rows [num_dst, width], and the state for `backward`."""
        form, num = self.fused.form, self.block.num_dst
        like = operands[0]
        out, saved = like.new_empty(num, self.fused.gathered_width), None
        if keep and self.fused.combine == "max":
            saved = torch.empty(out.shape, dtype=torch.int32, device=like.device)
        if keep and self.fused.combine == "attention":
            saved = like.new_empty(num, form.heads)
        outputs = {"o0": out} if saved is None else {"o0": out, "o1": saved}
        call = self._call(like, self.block.indptr, self.block.columns, keeps=saved is not None)
        self.loops(self.fused.forward_loop, call, self._arguments(operands) | outputs, num)
        return out, saved

    def backward(
        self,
        operands: Sequence[torch.Tensor],
        out: torch.Tensor,
        saved: torch.Tensor | None,
        grad: torch.Tensor,
    ) -> list[torch.Tensor]:
        """Return the gradients of the operands that need one, in the order of the operands."""
        fused, block = self.fused, self.block
        extra: dict[str, torch.Tensor] = {}
        inputs = list(operands)
        if fused.combine == "attention":
            assert saved is not None
            inputs += [saved, (grad * out).view(block.num_dst, fused.form.heads, -1).sum(2)]
        if fused.combine == "max":
            assert saved is not None
            extra["winners"] = saved
        arguments = self._arguments([*inputs, grad]) | extra
        gradients: dict[int, torch.Tensor] = {}
        if (loop := fused.destination_loop) is not None:
            chosen = [*fused.operands_with_gradient("destination"), *fused.operands_with_gradient("shared")]
            call = self._call(grad, block.indptr, block.columns)
            self._run_backward(loop, call, chosen, arguments, operands, block.num_dst, gradients)
        if (loop := fused.source_loop) is not None:
            by_source = block.transposed()
            call = self._call(grad, by_source.indptr, by_source.rows)
            arguments |= {
                "starts": by_source.indptr,
                "columns": by_source.rows,
                "numbers": by_source.edges,
            }
            arguments |= {f"x{k}": operands[k].index_select(0, by_source.edges) for k in fused.edge_operands}
            chosen = fused.operands_with_gradient("source")
            self._run_backward(loop, call, chosen, arguments, operands, block.num_src, gradients)
        return [gradients[k] for k in sorted(gradients)]

    def _run_backward(
        self,
        loop: EdgeLoop,
        call: LoopCall,
        chosen: Sequence[int],
        arguments: Mapping[str, torch.Tensor],
        operands: Sequence[torch.Tensor],
        num_rows: int,
        gradients: dict[int, torch.Tensor],
    ) -> None:
        """Run a backward loop and add its operand gradients to `gradients`."""
        outs = []
        for result, k in enumerate(chosen):
            rows = self.loops.num_totals(loop, num_rows) if loop.is_total(result) else num_rows
            outs.append(operands[k].new_empty(rows, operands[k].shape[1]))
        outputs = {f"o{result}": out for result, out in enumerate(outs)}
        self.loops(loop, call, dict(arguments) | outputs, num_rows)
        for result, (k, out) in enumerate(zip(chosen, outs, strict=True)):
            gradients[k] = out.sum(0, keepdim=True) if loop.is_total(result) else out

    def _arguments(self, operands: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        arguments = {f"x{k}": operand for k, operand in enumerate(operands)}
        arguments |= {"starts": self.block.indptr, "columns": self.block.columns}
        return arguments if self.factors is None else arguments | {"factors": self.factors}

    def _call(
        self, like: torch.Tensor, starts: torch.Tensor, columns: torch.Tensor, *, keeps: bool = True
    ) -> LoopCall:
        return LoopCall(
            has_factors=self.factors is not None,
            keeps=keeps,
            real="double" if like.dtype == torch.float64 else "float",
            starts=_integer(starts),
            columns=_integer(columns),
        )


def _integer(numbers: torch.Tensor) -> Literal["int", "long"]:
    return "long" if numbers.dtype == torch.int64 else "int"


class _GatherFused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gather: FusedTensorGather, *operands: torch.Tensor) -> torch.Tensor:
        rows = [operand.detach().contiguous() for operand in operands]
        out, saved = gather.forward(rows, keep=any(ctx.needs_input_grad))
        ctx.state = (gather, rows, out, saved)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gather, rows, out, saved = ctx.state
        gradients = iter(gather.backward(rows, out, saved, grad.detach().contiguous()))
        operands = gather.fused.form.operands
        return (None, *(next(gradients) if operand.takes_gradient else None for operand in operands))


def gather_fused(gather: FusedTensorGather, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the gathered rows [num_dst, width], differentiably. `operands` are those of the expression."""
    return cast(torch.Tensor, _GatherFused.apply(gather, *operands))  # type: ignore[no-untyped-call]


def gather_tensors(
    program: EdgeProgram, layer: nn.Module, block: TensorBlock, x: torch.Tensor, *, loops: bool
) -> torch.Tensor:
    """Gather the rows [num_dst, width] of a block with autograd support.

    `x` are the source rows [num_src, in]. If `loops`, each destination also has a self-loop.
    """
    factors = _factors(program, block, x.dtype, loops=loops)
    edges = _with_loops(block) if loops else block
    rows = {"source": x, "destination": x[: block.num_dst]}
    degrees = {"source": block.source_degrees, "destination": block.degrees}
    inputs: dict[EdgeInput, torch.Tensor] = {}
    ends: tuple[End, End] = ("source", "destination")
    for end in ends:
        plain = program.inputs_from(end)
        fixed = program.inputs_from(end, fixed=True)
        column = degrees[end].to(x.dtype)[:, None]
        values = [*program.vertex_values(layer, rows[end], end), *program.degree_values(layer, column, end)]
        inputs |= dict(zip([*plain, *fixed], values, strict=True))
    columns = {
        name: _edge_rows(name, values.to(x.dtype).reshape(block.num_edges, -1), block, loops=loops)
        for name, values in read_edge_columns(program, layer, block).items()
    }
    inputs |= dict(
        zip(program.inputs_from("edge", fixed=True), program.edge_input_values(layer, columns), strict=True)
    )
    if block.loops is not None and program.fused is not None and x.dtype in (torch.float32, torch.float64):
        inputs |= dict(zip(program.inputs_from("shared"), program.shared_values(layer), strict=True))
        flat = None if factors is None else factors[:, 0].contiguous()
        return gather_fused(
            FusedTensorGather(program.fused, block.loops, edges, flat),
            [inputs[value] for value in program.inputs],
        )
    edge_inputs = {}
    for item, value in inputs.items():
        # torch operators broadcast over heads, unlike the loops.
        rows_of_edges = value[:, : math.prod(item.shape)]
        if item.end != "edge":
            gather = gather_sources if item.end == "source" else gather_destinations
            rows_of_edges = gather(edges, rows_of_edges)
        edge_inputs[item.node] = rows_of_edges.reshape(-1, *item.shape)
    if program.slots:
        counts = edges.indptr[1:] - edges.indptr[:-1]
        check_slots(layer, program.slots, counts.cpu().numpy(), edges.destinations.cpu().numpy())
    return combine(program.accumulate, program.edge_values(layer, edge_inputs), edges, factors, program.slots)


def _edge_rows(name: str, values: torch.Tensor, block: TensorBlock, *, loops: bool) -> torch.Tensor:
    """Return the edge values [E, ...], including those of self-loops; see `self_loop_rows`."""
    if not loops:
        return values
    loop_values = values.new_ones(block.num_dst, 1)
    if name == "data":
        counts = (block.indptr[1:] - block.indptr[:-1]).clamp(min=1)
        loop_values = scatter_to_destinations(block, values) / counts[:, None]
    result = values.new_empty(len(values) + block.num_dst, values.shape[1])
    result[_edge_positions(block)] = values
    result[(block.indptr[:-1] + torch.arange(block.num_dst, device=result.device)).long()] = loop_values
    return result


def _with_loops(block: TensorBlock) -> TensorBlock:
    """Return the block with a self-loop before the other edges of each destination."""
    cached = block.derived.with_self_loops
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
        derived=DerivedEdges(),
    )
    block.derived.with_self_loops = with_loops
    return with_loops


def _edge_positions(block: TensorBlock) -> torch.Tensor:
    """Return the position [E] of each edge in the block with self-loops."""
    return torch.arange(block.num_edges, device=block.columns.device) + block.rows() + 1


def _factors(
    program: EdgeProgram, block: TensorBlock, dtype: torch.dtype, *, loops: bool
) -> torch.Tensor | None:
    """Return the factors [E, 1] of messages, as in `block_gather.block_edges`; None if all are 1."""
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
