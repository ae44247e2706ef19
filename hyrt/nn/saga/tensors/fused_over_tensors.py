"""A layer's gathering over a block of tensors, by the fused loops of the device they are on."""

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
    """What is gathered along the edges of a block, a vertex's edge from itself among them."""

    fused: FusedGather
    loops: TensorLoops
    block: TensorBlock
    factors: torch.Tensor | None
    """[E] factors of the edges."""

    __repr__ = one_line

    def forward(
        self, operands: Sequence[torch.Tensor], *, keep: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What destinations gather [num_dst, width], and what `backward` needs of it besides."""
        form, num = self.fused.form, self.block.num_dst
        like = operands[0]
        out, kept = like.new_empty(num, self.fused.gathered_width), None
        if keep and self.fused.combine == "max":
            kept = torch.empty(out.shape, dtype=torch.int32, device=like.device)
        if keep and self.fused.combine == "attention":
            kept = like.new_empty(num, form.heads)
        given = {"o0": out} if kept is None else {"o0": out, "o1": kept}
        call = self._call(like, self.block.indptr, self.block.columns, keeps=kept is not None)
        self.loops(self.fused.forward_loop, call, self._given(operands) | given, num)
        return out, kept

    def backward(
        self,
        operands: Sequence[torch.Tensor],
        out: torch.Tensor,
        kept: torch.Tensor | None,
        grad: torch.Tensor,
    ) -> list[torch.Tensor]:
        """The gradient of each operand whose gradient is wanted, in their order."""
        fused, block = self.fused, self.block
        more: dict[str, torch.Tensor] = {}
        along = list(operands)
        if fused.combine == "attention":
            assert kept is not None
            along += [kept, (grad * out).view(block.num_dst, fused.form.heads, -1).sum(2)]
        if fused.combine == "max":
            assert kept is not None
            more["winners"] = kept
        given = self._given([*along, grad]) | more
        found: dict[int, torch.Tensor] = {}
        if (loop := fused.destination_loop) is not None:
            chosen = [*fused.of_end("destination"), *fused.of_end("shared")]
            call = self._call(grad, block.indptr, block.columns)
            self._gradients(loop, call, chosen, given, operands, block.num_dst, found)
        if (loop := fused.source_loop) is not None:
            turned = block.transposed()
            call = self._call(grad, turned.indptr, turned.rows)
            given |= {"starts": turned.indptr, "columns": turned.rows, "numbers": turned.edges}
            given |= {f"x{k}": operands[k].index_select(0, turned.edges) for k in fused.of_edges}
            self._gradients(loop, call, fused.of_end("source"), given, operands, block.num_src, found)
        return [found[k] for k in sorted(found)]

    def _gradients(
        self,
        loop: EdgeLoop,
        call: LoopCall,
        chosen: Sequence[int],
        given: Mapping[str, torch.Tensor],
        operands: Sequence[torch.Tensor],
        num_rows: int,
        found: dict[int, torch.Tensor],
    ) -> None:
        """Run a backward loop, and write down the gradients of the operands that it gives."""
        outs = []
        for at, k in enumerate(chosen):
            rows = self.loops.num_totals(loop, num_rows) if loop.is_total(at) else num_rows
            outs.append(operands[k].new_empty(rows, operands[k].shape[1]))
        self.loops(loop, call, dict(given) | {f"o{at}": out for at, out in enumerate(outs)}, num_rows)
        for at, (k, out) in enumerate(zip(chosen, outs, strict=True)):
            found[k] = out.sum(0, keepdim=True) if loop.is_total(at) else out

    def _given(self, operands: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        given = {f"x{k}": each for k, each in enumerate(operands)}
        given |= {"starts": self.block.indptr, "columns": self.block.columns}
        return given if self.factors is None else given | {"factors": self.factors}

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
        rows = [each.detach().contiguous() for each in operands]
        out, kept = what.forward(rows, keep=any(ctx.needs_input_grad))
        ctx.known = (what, rows, out, kept)
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        what, rows, out, kept = ctx.known
        found = iter(what.backward(rows, out, kept, grad.detach().contiguous()))
        operands = what.fused.form.operands
        return (None, *(next(found) if each.takes_gradient else None for each in operands))


def gather_fused(what: FusedOverTensors, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """[num_dst, width] what destinations gather, differentiable.

    Parameters
    ----------
    what
        The loops and the edges.
    operands
        A matrix for each operand of the form.
    """
    return cast(torch.Tensor, _GatherFused.apply(what, *operands))  # type: ignore[no-untyped-call]
