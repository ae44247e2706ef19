"""Options of chunked full-graph training."""

from __future__ import annotations

from dataclasses import dataclass

from hyrt.fullgraph.grid.visits import Order


@dataclass(frozen=True, slots=True)
class ChunkOptions:
    """Settings of chunked full-graph training."""

    num: int = 0
    """Number of vertex intervals; 0 is the smallest number that fits the device's memory. At most one
    interval per vertex.
    """
    order: Order = "column-row"
    """Order in which chunks are processed."""
    in_flight: int = 0
    """Number of chunks on the device at once: one is computed while the others are copied. 1 alternates
    copies and computation; 0 is 1 if the device reads host memory in place, otherwise 2.
    """
    filter_below: float | None = None
    """Copy only the useful rows of an interval for a chunk if their fraction is below this; 0 is never. None
    chooses by measured rates, and 0 if the device reads host memory in place.
    """
