"""Links that an evaluation asks for, and what it ranks them among."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.links.link_ends import LinkEnds
from hyrt.graph.topology import Topology
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True)
class AskedLinks:
    """Pairs of rows: those of links, and those that are none."""

    links: NDArray[np.int64]
    """[m, 2] rows of the sources and of the destinations."""
    negatives: NDArray[np.int64]
    """[n, 2] the same of pairs that are no links."""
    candidates: NDArray[np.int64] | None
    """[m, 2, K] rows to be ranked in place of the source and of the destination, -1 for none; None where it
    is all rows of `ends` but those that make known edges."""
    known: Topology | None = None
    """The known edges, whose vertices are all rows in their order; where all are candidates."""
    ends: LinkEnds | None = None
    """The vertices that are candidates; where all are."""

    __repr__ = one_line
