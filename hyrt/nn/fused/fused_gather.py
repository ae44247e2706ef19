"""A form's gathering, forward and backward, in fused loops: no array has a row for each edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.workers import Workers, current_workers
from hyrt.nn.fused.derivative import gradients
from hyrt.nn.fused.edge_loop import Combine, EdgeLoop
from hyrt.nn.fused.edges import Edges
from hyrt.nn.fused.form import Form, FormBuilder
from hyrt.nn.fused.loop_runner import is_on_device, run_loop
from hyrt.nn.fused.numba_printer import MOST_WHOLE_LANES, passes

Array = NDArray[Any]


@dataclass(frozen=True)
class FusedGather:
    """A gathering whose messages are a form of both ends.

    Parameters
    ----------
    form
        Its results are the messages [heads * width], or for `attention` the scores [heads] and the messages.
    combine
        How messages become one; a mean is a sum with factors.
    has_loops
        Whether vertices have an edge from themselves besides their own.
    """

    form: Form
    combine: Combine
    has_loops: bool

    @property
    def gathered_width(self) -> int:
        return self.form.heads * self.form.width

    @property
    def unfusable(self) -> str:
        """Why the loops cannot be printed; empty where they can."""
        loops = [self.forward_loop, *(each for each in (self.destination_loop, self.source_loop) if each)]
        if self.form.width > MOST_WHOLE_LANES and any(loop.is_whole for loop in loops):
            return (
                f"it adds up the {self.form.width} columns of a row on an edge, and the loops hold "
                f"{MOST_WHOLE_LANES} at most"
            )
        return ""

    def of_end(self, end: str) -> list[int]:
        """The operands of one end whose gradients are wanted."""
        operands = enumerate(self.form.operands)
        return [k for k, operand in operands if operand.end == end and operand.takes_gradient]

    @property
    def of_edges(self) -> list[int]:
        """The operands whose rows are those of edges."""
        return [k for k, operand in enumerate(self.form.operands) if operand.end == "edge"]

    @cached_property
    def forward_loop(self) -> EdgeLoop:
        """What destinations gather."""
        return EdgeLoop(self.form, "destination", self.combine, self.has_loops)

    @cached_property
    def _narrowed(self) -> dict[tuple[bool, ...], FusedGather]:
        return {}

    def taking(self, wanted: tuple[bool, ...]) -> FusedGather:
        """The same with the gradients of some operands alone, whose loops compute nothing for the others."""
        found = self._narrowed.get(wanted)
        if found is None:
            pairs = zip(self.form.operands, wanted, strict=True)
            operands = tuple(
                replace(each, takes_gradient=each.takes_gradient and is_wanted) for each, is_wanted in pairs
            )
            found = self._narrowed[wanted] = replace(self, form=replace(self.form, operands=operands))
        return found

    def forward(
        self, edges: Edges, operands: Sequence[Array], out: Array, kept: Array | None, workers: Workers | None
    ) -> None:
        """Gather at destinations.

        Parameters
        ----------
        edges
            By destination.
        operands
            One C-contiguous matrix for each operand of the form, all float32 or all float64; those of edges
            by number.
        out
            [m, heads * width] one row for each row of the edges; overwritten.
        kept
            For `max` [m, heads * width] int32, which receives which edge has the largest value; for
            `attention` [m, heads], the logarithms of the softmax's denominators; None to keep nothing.
        workers
            The team of threads; the calling thread's by default.
        """
        outs: tuple[Array | None, ...] = (out,) if self.combine == "sum" else (out, kept)
        run_loop(self.forward_loop, edges, operands, outs, None, workers)

    @cached_property
    def _gradients(self) -> Form:
        """The gradients of all operands.

        They are given besides, at last, the gradient of what was gathered, and before it for `attention` the
        logarithm of the denominator and the mean of the gradient.
        """
        builder = FormBuilder.after(self.form)
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
        found = gradients(builder, self.form, seeds)
        results = []
        for k, operand in enumerate(self.form.operands):
            results.append(found[k] if k in found else builder.constant(0, operand.kind))
        return builder.form(results)

    def _turned(self, near: str, ends: tuple[str, ...]) -> EdgeLoop | None:
        """The loop for the gradients of the operands of some ends; of ends that are not near, to far rows."""
        chosen = [k for end in ends for k in self.of_end(end)]
        if not chosen:
            return None
        full = self._gradients
        builder = FormBuilder.after(full)
        of_ends = [self.form.operands[k].end for k in chosen]
        to_far = tuple(end not in (near, "shared") for end in of_ends)
        return EdgeLoop(
            builder.form([full.results[k] for k in chosen]),
            "source" if near == "source" else "destination",
            "sum",
            self.has_loops,
            masked=self.combine == "max",
            by_chunk=tuple(end == "shared" for end in of_ends),
            to_far=to_far if any(to_far) else (),
        )

    @cached_property
    def destination_loop(self) -> EdgeLoop | None:
        """The gradients of the destinations' operands and of the shared ones; None where none is wanted."""
        return self._turned("destination", ("destination", "shared"))

    @cached_property
    def source_loop(self) -> EdgeLoop | None:
        """The gradients of the sources' operands; None where none is wanted."""
        return self._turned("source", ("source",))

    @cached_property
    def both_loop(self) -> EdgeLoop | None:
        """`destination_loop` and `source_loop` in one, with the same bits; None where there is none.

        Each row adds to its far ends in the order in which their own loop would. An edge from a vertex to
        itself would come first there. What is added up over columns is rounded otherwise.
        """
        if self.destination_loop is None or self.source_loop is None or self.has_loops:
            return None
        loop = self._turned("destination", ("destination", "shared", "source"))
        assert loop is not None
        kinds = {loop.form.values[at].kind for at in loop.form.results}
        return loop if kinds == {"row"} else None

    def goes_both_ways(self, edges: Edges, workers: Workers | None) -> bool:
        """Whether `to_both_ends` is there, and faster than a loop for each end and the edges by source.

        It does half the work, which as many threads share as there are passes over the columns. Bits are the
        same in any case, if rows come in the order of their numbers: so are they in the edges by source.
        """
        loop, rows = self.both_loop, edges.rows
        if loop is None or is_on_device() or (rows is not None and (rows[1:] <= rows[:-1]).any()):
            return False
        return (workers or current_workers()).count <= 2 * len(passes(loop.form, whole=loop.is_whole))

    def means(self, grad: Array, out: Array, means: Array, workers: Workers | None) -> None:
        """For `attention`: the products [m, heads] of what was gathered and its gradient, by head."""
        shape = (len(grad), self.form.heads, self.form.width)

        def work(start: int, stop: int) -> None:
            a, b = (each.reshape(shape)[start:stop] for each in (grad, out))
            np.einsum("nhd,nhd->nh", a, b, out=means[start:stop])

        (workers or current_workers()).run(work, len(grad), 4096)

    def to_destinations(
        self,
        edges: Edges,
        operands: Sequence[Array],
        outs: Sequence[Array],
        winners: Array | None,
        workers: Workers | None,
    ) -> list[Array]:
        """The gradients of the destinations' operands, and of the shared ones.

        Parameters
        ----------
        edges
            By destination.
        operands
            Those of the form, for `attention` with the two matrices [m, heads] of `forward` and `means`, and
            the gradient [m, heads * width] of what was gathered.
        outs
            One matrix for each operand of a destination; a row that is computed is overwritten.
        winners
            What `forward` has kept for `max`.
        workers
            The team of threads; the calling thread's by default.

        Returns
        -------
        The gradients of the shared operands, each one row.
        """
        loop = self.destination_loop
        return [] if loop is None else run_loop(loop, edges, operands, outs, winners, workers)

    def to_both_ends(
        self,
        edges: Edges,
        operands: Sequence[Array],
        destinations: Sequence[Array],
        sources: Sequence[Array],
        winners: Array | None,
        workers: Workers | None,
    ) -> list[Array]:
        """`to_destinations` and `to_sources` in one loop over the edges by destination."""
        assert self.both_loop is not None
        outs = [*destinations, *sources]
        return run_loop(self.both_loop, edges, operands, outs, winners, workers)

    def to_sources(
        self,
        edges: Edges,
        operands: Sequence[Array],
        outs: Sequence[Array],
        winners: Array | None,
        workers: Workers | None,
    ) -> None:
        """The gradients of the sources' operands, over the edges by source; see `to_destinations`."""
        if self.source_loop is not None:
            run_loop(self.source_loop, edges, operands, outs, winners, workers)
