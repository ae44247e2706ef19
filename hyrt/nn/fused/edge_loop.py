"""What a loop over the edges of rows computes, whoever prints it.

One loop serves a form and its derivatives. A row is near: its operands are read once, and what its edges give
is added up in registers. The other ends of its edges are far. Forward, destinations are near; in the backward
pass destinations are near once and, over the transpose, sources once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from hyrt.nn.fused.form import Form, Operand

Combine = Literal["sum", "max", "attention"]


@dataclass(frozen=True)
class EdgeLoop:
    """What a loop over edges computes.

    Its hash is kept: over a small block, to look a loop up would take as long as to run it.
    """

    form: Form
    near: Literal["source", "destination"]
    """Which end the rows are."""
    combine: Combine
    """What becomes of the results of a row's edges. For `attention` the first is a score, the second what it
    weighs."""
    has_loops: bool
    """Whether rows have an edge from themselves besides their own."""
    masked: bool = False
    """Whether the gradient of what was gathered, the last operand, counts only where an edge has won."""
    by_chunk: tuple[bool, ...] = ()
    """For each result, whether it is added up over all rows of a call, and not for each row."""
    to_far: tuple[bool, ...] = ()
    """For each result, whether it is added to the row of an edge's far end, which others have added to. The
    host's threads alone run such loops, and share the columns."""

    @cached_property
    def _hash(self) -> int:
        return hash((
            self.form, self.near, self.combine, self.has_loops, self.masked, self.by_chunk, self.to_far,
        ))  # fmt: skip

    def __hash__(self) -> int:
        return self._hash

    @property
    def is_whole(self) -> bool:
        """Whether heads may not be cut."""
        return self.combine == "attention" or self.form.sums_inside

    @property
    def num_outputs(self) -> int:
        """Arrays that a loop writes: its results, or what was gathered and what is kept of it."""
        return {"sum": len(self.form.results), "max": 2, "attention": 2}[self.combine]

    @property
    def is_backward(self) -> bool:
        """Whether the last operand is the gradient of what was gathered."""
        operands = self.form.operands
        return self.combine == "sum" and bool(operands) and operands[-1].end == "gathered"

    def is_far(self, operand: Operand) -> bool:
        """Whether an operand is read once for each edge."""
        if operand.end in ("shared", "edge"):
            return operand.end == "edge"
        return (operand.end == "source") != (self.near == "source")

    def is_total(self, k: int) -> bool:
        """Whether result k is added up over all rows of a call."""
        return bool(self.by_chunk) and self.by_chunk[k]

    def goes_far(self, k: int) -> bool:
        """Whether result k is added to the rows of far ends."""
        return bool(self.to_far) and self.to_far[k]

    def added(self, k: int) -> int:
        """What is added up for result k: of a sum over columns, the row."""
        at = self.form.results[k]
        value = self.form.values[at]
        return value.arguments[0] if value.op == "sum" else at
