"""Gather of a layer over a block of tensors by the fused loops of their device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch

from hyrt.nn.fused.c_loops.c_printer import LoopCall
from hyrt.nn.fused.c_loops.tensor_loops import TensorLoops
from hyrt.nn.fused.edge_loop import EdgeLoop
from hyrt.nn.fused.fused_gather import FusedGather
from hyrt.nn.operators.first_derivative import first_derivative
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True)
class FusedOverTensors:
    """Fused gather along the edges of a block, including self-loops."""

    fused: FusedGather
    loops: TensorLoops
    block: TensorBlock
    factors: torch.Tensor | None
    """[E] factors of the edges; None for 1."""

    __repr__ = one_line

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
        kept: torch.Tensor | None,
        grad: torch.Tensor,
    ) -> list[torch.Tensor]:
        """Return the gradients of the operands that take one, in operand order."""
        fused, block = self.fused, self.block
        extra: dict[str, torch.Tensor] = {}
        inputs = list(operands)
        if fused.combine == "attention":
            assert kept is not None
            inputs += [kept, (grad * out).view(block.num_dst, fused.form.heads, -1).sum(2)]
        if fused.combine == "max":
            assert kept is not None
            extra["winners"] = kept
        arguments = self._arguments([*inputs, grad]) | extra
        gradients: dict[int, torch.Tensor] = {}
        if (loop := fused.destination_loop) is not None:
            chosen = [*fused.of_end("destination"), *fused.of_end("shared")]
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
            arguments |= {f"x{k}": operands[k].index_select(0, by_source.edges) for k in fused.of_edges}
            chosen = fused.of_end("source")
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
        """Run a backward loop, and add its operand gradients to `gradients`."""
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
    def forward(ctx: Any, what: FusedOverTensors, *operands: torch.Tensor) -> torch.Tensor:
        rows = [operand.detach().contiguous() for operand in operands]
        out, saved = what.forward(rows, keep=any(ctx.needs_input_grad))
        ctx.state = (what, rows, out, saved)
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gather, rows, out, saved = ctx.state
        gradients = iter(gather.backward(rows, out, saved, grad.detach().contiguous()))
        operands = gather.fused.form.operands
        return (None, *(next(gradients) if operand.takes_gradient else None for operand in operands))


def gather_fused(what: FusedOverTensors, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the gathered rows [num_dst, width], differentiable.

    Parameters
    ----------
    what
        The loops and the edges.
    operands
        One matrix per operand of the edge expression.
    """
    return cast(torch.Tensor, _GatherFused.apply(what, *operands))  # type: ignore[no-untyped-call]
