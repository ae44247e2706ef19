"""Edge arrays that fused loops read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hyrt.quantities import one_line

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
    """Index of each destination among the gathered rows, negative if it has not gathered; identity by
    default."""
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

    __repr__ = one_line
