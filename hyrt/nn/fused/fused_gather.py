"""Fused gather of an edge expression, forward and backward, without arrays of one row per edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.nn.fused.edge_expr import EdgeExpr, EdgeExprBuilder, append_gradients
from hyrt.nn.fused.edge_loop import Combine, EdgeLoop, Edges
from hyrt.nn.fused.loop_backend import is_on_device, run_loop
from hyrt.nn.fused.numba_codegen import MAX_UNSPLIT_LANES, column_passes
from hyrt.runtime.workers import Workers, current_workers

Array = NDArray[Any]


@dataclass(frozen=True)
class FusedGather:
    """Gather whose messages are an expression of both ends.

    `form` has the messages [heads * width], for `attention` preceded by the scores [heads]. A mean is a sum
    with factors. With `has_loops`, vertices have a self-loop in addition to their edges.
    """

    form: EdgeExpr
    combine: Combine
    has_loops: bool

    @property
    def gathered_width(self) -> int:
        return self.form.heads * self.form.width

    @property
    def unfused_reason(self) -> str:
        """Return the reason why the loops cannot be generated; empty if they can."""
        loops = [self.forward_loop, *(loop for loop in (self.destination_loop, self.source_loop) if loop)]
        if self.form.width > MAX_UNSPLIT_LANES and any(loop.is_whole for loop in loops):
            return (
                f"it adds up the {self.form.width} columns of a row on an edge, and the loops hold "
                f"{MAX_UNSPLIT_LANES} at most"
            )
        return ""

    def operands_with_gradient(self, end: str) -> list[int]:
        """Return the operands of one end whose gradients are needed."""
        operands = enumerate(self.form.operands)
        return [k for k, operand in operands if operand.end == end and operand.takes_gradient]

    @property
    def edge_operands(self) -> list[int]:
        """Return the operands with one row per edge."""
        return [k for k, operand in enumerate(self.form.operands) if operand.end == "edge"]

    @cached_property
    def forward_loop(self) -> EdgeLoop:
        """Return the loop of the forward gather."""
        return EdgeLoop(self.form, "destination", self.combine, self.has_loops)

    @cached_property
    def _subsets(self) -> dict[tuple[bool, ...], FusedGather]:
        return {}

    def with_gradients(self, needs_gradient: tuple[bool, ...]) -> FusedGather:
        """Return the gather with gradients of the wanted operands only; its loops skip the others."""
        subset = self._subsets.get(needs_gradient)
        if subset is None:
            pairs = zip(self.form.operands, needs_gradient, strict=True)
            operands = tuple(
                replace(operand, takes_gradient=operand.takes_gradient and is_required)
                for operand, is_required in pairs
            )
            subset = self._subsets[needs_gradient] = replace(self, form=replace(self.form, operands=operands))
        return subset

    def forward(
        self,
        edges: Edges,
        operands: Sequence[Array],
        out: Array,
        saved: Array | None,
        workers: Workers | None,
    ) -> None:
        """Gather over `edges` by destination into `out` [m, heads * width], one row per row of the edges.

        `operands` has one C-contiguous matrix per operand of the expression, all float32 or all float64, with
        edge rows by edge id. `saved` receives the state for the backward pass: for `max` the argmax edges [m,
        heads * width] int32, for `attention` the logarithms of the softmax denominators [m, heads].
        """
        outs: tuple[Array | None, ...] = (out,) if self.combine == "sum" else (out, saved)
        run_loop(self.forward_loop, edges, operands, outs, None, workers)

    @cached_property
    def _gradients(self) -> EdgeExpr:
        """Return the expression of the gradients of all operands.

        Its last operand is the gradient of the gathered rows; for `attention` the two operands before it are
        the logarithm of the denominator and the mean of the gradient.
        """
        builder = EdgeExprBuilder.from_expr(self.form)
        if self.combine == "attention":
            score, message = self.form.results
            lse, mean = (builder.operand("gathered", "column") for _ in range(2))
            g = builder.operand("gathered", "row")
            weight = builder.function("exp", builder.subtract(score, lse))
            along = builder.sum(builder.multiply(g, message))
            seeds = {
                score: builder.multiply(weight, builder.subtract(along, mean)),
                message: builder.multiply(builder.spread(weight), g),
            }
        else:
            g = builder.operand("gathered", "row")
            seeds = {self.form.results[0]: g}
        operand_grads = append_gradients(builder, self.form, seeds)
        results = []
        for k, operand in enumerate(self.form.operands):
            results.append(operand_grads[k] if k in operand_grads else builder.constant(0, operand.kind))
        return builder.build(results)

    def _backward_loop(self, near: str, ends: tuple[str, ...]) -> EdgeLoop | None:
        """Return the loop for gradients of some ends' operands; far ends' gradients go to far rows."""
        chosen = [k for end in ends for k in self.operands_with_gradient(end)]
        if not chosen:
            return None
        full = self._gradients
        builder = EdgeExprBuilder.from_expr(full)
        operand_ends = [self.form.operands[k].end for k in chosen]
        to_far = tuple(end not in (near, "shared") for end in operand_ends)
        return EdgeLoop(
            builder.build([full.results[k] for k in chosen]),
            "source" if near == "source" else "destination",
            "sum",
            self.has_loops,
            masked=self.combine == "max",
            by_chunk=tuple(end == "shared" for end in operand_ends),
            to_far=to_far if any(to_far) else (),
        )

    @cached_property
    def destination_loop(self) -> EdgeLoop | None:
        """Return the loop for gradients of destination and shared operands; None if none is needed."""
        return self._backward_loop("destination", ("destination", "shared"))

    @cached_property
    def source_loop(self) -> EdgeLoop | None:
        """Return the loop for gradients of source operands; None if none is needed."""
        return self._backward_loop("source", ("source",))

    @cached_property
    def both_loop(self) -> EdgeLoop | None:
        """Return one loop that replaces `destination_loop` and `source_loop` with equal bits, or None.

        Rows add to their far ends in the same order as `source_loop`. None with self-loops, which come first
        in `source_loop`, and with sums over columns, which would be rounded differently.
        """
        if self.destination_loop is None or self.source_loop is None or self.has_loops:
            return None
        loop = self._backward_loop("destination", ("destination", "shared", "source"))
        assert loop is not None
        kinds = {loop.form.values[at].kind for at in loop.form.results}
        return loop if kinds == {"row"} else None

    def uses_both_loop(self, edges: Edges, workers: Workers | None) -> bool:
        """Return whether `backward_to_both_ends` is available, and faster than one loop per end.

        It does half the work, but the number of column passes limits its threads. The bits are equal if the
        rows are in ascending order, which is their order in the edges by source.
        """
        loop, rows = self.both_loop, edges.rows
        if loop is None or is_on_device() or (rows is not None and (rows[1:] <= rows[:-1]).any()):
            return False
        return (workers or current_workers()).count <= 2 * len(column_passes(loop.form, whole=loop.is_whole))

    def output_gradient_products(
        self, grad: Array, out: Array, means: Array, workers: Workers | None
    ) -> None:
        """Compute the dot products [m, heads] of gathered rows and their gradient, for `attention`."""
        shape = (len(grad), self.form.heads, self.form.width)

        def work(start: int, stop: int) -> None:
            a, b = (each.reshape(shape)[start:stop] for each in (grad, out))
            np.einsum("nhd,nhd->nh", a, b, out=means[start:stop])

        (workers or current_workers()).run(work, len(grad), 4096)

    def backward_to_destinations(
        self,
        edges: Edges,
        operands: Sequence[Array],
        outs: Sequence[Array],
        winners: Array | None,
        workers: Workers | None,
    ) -> list[Array]:
        """Compute the gradients of destination operands into `outs`, and return one row per shared operand.

        `operands` are those of `forward`; for `attention` then the saved denominators and `means`, [m, heads]
        each; then the gradient of the gathered rows [m, heads * width]. Only computed rows of `outs` are
        overwritten. For `max`, `winners` has the argmax edges that `forward` saved.
        """
        loop = self.destination_loop
        return [] if loop is None else run_loop(loop, edges, operands, outs, winners, workers)

    def backward_to_both_ends(
        self,
        edges: Edges,
        operands: Sequence[Array],
        destinations: Sequence[Array],
        sources: Sequence[Array],
        winners: Array | None,
        workers: Workers | None,
    ) -> list[Array]:
        """Compute the gradients of both ends' operands in one loop over the edges by destination."""
        assert self.both_loop is not None
        outs = [*destinations, *sources]
        return run_loop(self.both_loop, edges, operands, outs, winners, workers)

    def backward_to_sources(
        self,
        edges: Edges,
        operands: Sequence[Array],
        outs: Sequence[Array],
        winners: Array | None,
        workers: Workers | None,
    ) -> None:
        """Compute gradients of source operands, over the edges by source; see `backward_to_destinations`."""
        if self.source_loop is not None:
            run_loop(self.source_loop, edges, operands, outs, winners, workers)
