"""How a device is asked to cut a whole graph."""

from __future__ import annotations

from dataclasses import dataclass

from hyrt.fullgraph.grid.visits import Order


@dataclass(frozen=True, slots=True)
class ChunkOptions:
    """What the settings say of chunks."""

    num: int = 0
    """Into how many intervals vertices are cut; 0 is the least number with which the device's memory
    suffices. A graph with fewer vertices has one for each."""
    order: Order = "column-row"
    """In which order chunks are read."""
    in_flight: int = 0
    """How many chunks are on the device at once: all but one of them are copied while one is computed. 1
    copies and computes by turns; 0 is 1 where the device reads the host's memory in place, else 2."""
    filter_below: float | None = None
    """The useful fraction of an interval's rows below which only those are copied for a chunk; 0 is never.
    None is what measured rates say, and 0 where the device reads the host's memory in place."""
