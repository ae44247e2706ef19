"""How a whole graph is trained chunk by chunk: what is switched on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSchedule:
    """NeuGraph's optimisations, sections 3.1 to 3.4. With all of them off, one chunk follows the other."""

    fused: bool = False
    """Gather in one kernel, without an array of a row an edge (3.4)."""
    selective: bool = False
    """Filter a source chunk's rows on the host where that saves time (3.2)."""
    filter_below: float | None = None
    """The useful fraction of rows below which `selective` filters; None is what the machine's rates say."""
    sub_chunks: int = 1
    """Parts that a chunk is cut into, so that one is copied while another is computed."""
    room: int | None = None
    """How many of these parts a device holds at once; None is `sub_chunks`. 1 overlaps nothing."""
    swaps: bool = False
    """Order the sub-chunks by their times (3.2)."""
    chain: bool = False
    """Devices of one switch pass source chunks on to each other (3.3)."""
    shares: tuple[float, ...] = ()
    """How columns are dealt out to the devices; by what each layer takes them if empty (3.3)."""
    order: Literal["column-row", "row-column"] = "column-row"
    """Forward by columns and backward by rows, or the other way round (3.1, Discussion)."""
