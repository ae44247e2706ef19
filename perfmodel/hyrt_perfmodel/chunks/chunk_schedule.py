"""Schedule options of full-graph training in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSchedule:
    """NeuGraph's optimizations, sections 3.1 to 3.4. With all of them off, chunks are processed
    sequentially.
    """

    fused: bool = False
    """Gather in one kernel, without an array with one row per edge (3.4)."""
    selective: bool = False
    """Filter a source chunk's rows on the host if that saves time (3.2)."""
    filter_below: float | None = None
    """Useful fraction of rows below which `selective` filters; None to derive it from the machine's rates."""
    sub_chunks: int = 1
    """Number of pieces of a chunk, so that one piece is copied while another is computed."""
    room: int | None = None
    """Number of pieces that a device holds at once; None for `sub_chunks`. 1 disables overlap."""
    swaps: bool = False
    """Order the sub-chunks by their times (3.2)."""
    chain: bool = False
    """Devices of one switch forward source chunks to each other (3.3)."""
    shares: tuple[float, ...] = ()
    """Relative shares of the columns per device; if empty, columns are assigned by their cost in each layer
    (3.3)."""
    order: Literal["column-row", "row-column"] = "column-row"
    """Traversal order: forward by columns and backward by rows, or the reverse (3.1, Discussion)."""
