"""Links of an evaluation, with the candidates that they are ranked against."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.links.link_ends import LinkEnds
from hyrt.graph.topology import Topology
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True)
class AskedLinks:
    """Positive and negative pairs of an evaluation, as row numbers of the embeddings."""

    links: NDArray[np.int64]
    """[m, 2] rows of the sources and the destinations of links."""
    negatives: NDArray[np.int64]
    """[n, 2] rows of negative pairs."""
    candidates: NDArray[np.int64] | None
    """[m, 2, K] rows that replace the source or the destination, -1 for none. None: rank against all rows of
    `ends` that do not make a known edge.
    """
    known: Topology | None = None
    """Known edges, with all rows as vertices in the same order; set if all rows are candidates."""
    ends: LinkEnds | None = None
    """Vertices that are candidates; set if all are."""

    __repr__ = one_line
