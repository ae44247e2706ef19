"""Loops over edges, independent of the code generator, and the edges that they read.

One loop type serves an expression and its derivatives. Each row of a loop is the near end of its edges: its
operands are read once, and the values of its edges are accumulated in registers. The other ends are far. The
forward pass has near destinations; the backward pass runs once with near destinations and once, over the
transpose, with near sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.nn.fused.edge_expr import EdgeExpr, Operand

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Edges sorted by one end, with their factors."""

    indptr: Array
    """[n + 1] int32 or int64, start of each row's edges."""
    columns: Array
    """[E] int32 or int64, far end of each edge."""
    rows: Array | None = None
    """[m] rows to compute; all by default."""
    positions: Array | None = None
    """[num_dst] index of each destination among the gathered rows, negative if absent; None: identity."""
    numbers: Array | None = None
    """[E] id of each edge in the order by destination; consecutive by default."""
    by_number: bool = False
    """Whether the argmax edge is recorded by its id instead of its source."""
    factors: Array | None = None
    """[E] floating point, factor of each edge, by edge id."""
    row_scale: Array | None = None
    """[num_dst] floating point, factor of all edges into each destination."""
    loop_scale: Array | None = None
    """[num_dst] floating point, self-loop weight of each destination."""
    loops: int = 0
    """Number of rows, from the first, that have a self-loop in addition to their edges."""

    __repr__ = short_repr


Combine = Literal["sum", "max", "attention"]


@dataclass(frozen=True)
class EdgeLoop:
    """Computation of a loop over edges.

    The hash is cached, since hashing takes as long as running the loop over a small block.
    """

    form: EdgeExpr
    near: Literal["source", "destination"]
    """End of the edges that belongs to a row."""
    combine: Combine
    """Reduction of a row's edges. For `attention`, the results are a score and the message it weights."""
    has_loops: bool
    """Whether rows have a self-loop in addition to their edges."""
    masked: bool = False
    """Whether the last operand, the gradient of the gathered rows, counts only for argmax edges."""
    by_chunk: tuple[bool, ...] = ()
    """For each result, whether it is summed over all rows of a call instead of per row."""
    to_far: tuple[bool, ...] = ()
    """For each result, whether it is added to the rows of far ends; only the host runs such loops."""

    @cached_property
    def _hash(self) -> int:
        return hash((
            self.form, self.near, self.combine, self.has_loops, self.masked, self.by_chunk, self.to_far,
        ))  # fmt: skip

    def __hash__(self) -> int:
        return self._hash

    @property
    def is_whole(self) -> bool:
        """Return whether heads must not be split."""
        return self.combine == "attention" or self.form.sums_inside

    @property
    def num_outputs(self) -> int:
        """Return the number of output arrays: the results, or the gathered rows and the saved state."""
        return {"sum": len(self.form.results), "max": 2, "attention": 2}[self.combine]

    @property
    def is_backward(self) -> bool:
        """Return whether the last operand is the gradient of the gathered rows."""
        operands = self.form.operands
        return self.combine == "sum" and bool(operands) and operands[-1].end == "gathered"

    def is_far(self, operand: Operand) -> bool:
        """Return whether an operand is read once per edge."""
        if operand.end in ("shared", "edge"):
            return operand.end == "edge"
        return (operand.end == "source") != (self.near == "source")

    def is_total(self, k: int) -> bool:
        """Return whether result k is summed over all rows of a call."""
        return bool(self.by_chunk) and self.by_chunk[k]

    def adds_to_far(self, k: int) -> bool:
        """Return whether result k is added to the rows of far ends."""
        return bool(self.to_far) and self.to_far[k]

    def summand(self, k: int) -> int:
        """Return the value that is accumulated for result k; for a sum over columns, the row that it sums."""
        at = self.form.results[k]
        value = self.form.values[at]
        return value.arguments[0] if value.op == "sum" else at
