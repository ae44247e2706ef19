"""Edges as fused loops take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hyrt.quantities import one_line

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Edges by one of their ends, and what is known of them."""

    indptr: Array
    """[n + 1] int32 or int64, where the edges of each row start."""
    columns: Array
    """[E] int32 or int64, the far end of each edge."""
    rows: Array | None = None
    """[m] the rows to compute; all by default."""
    positions: Array | None = None
    """Where each destination is among those that have gathered, negative where it is not; by default it is
    its own number."""
    numbers: Array | None = None
    """[E] which of the edges by destination each one is; consecutive by default."""
    by_number: bool = False
    """Whether an edge that has the largest value is remembered by its number, and not by its source."""
    factors: Array | None = None
    """[E] floating point, by number: factors of the edges."""
    row_scale: Array | None = None
    """[destinations] floating point: factors of all edges into each."""
    loop_scale: Array | None = None
    """[destinations] floating point: factors of their edges from themselves."""
    loops: int = 0
    """How many rows, from the first, have an edge from themselves besides their own."""

    __repr__ = one_line
