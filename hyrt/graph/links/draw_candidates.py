"""Sampling of the candidates among which a link's endpoints are ranked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.links.edge_kernels import draw_ends
from hyrt.graph.links.link_ends import LinkEnds
from hyrt.graph.topology import Topology
from hyrt.machine.generator import LINKS, stream_key

_KEYS = {"val": 5, "test": 6}


def draw_candidates(
    known: Topology, links: NDArray[Any], seed: int, part: str, num: int, ends: LinkEnds
) -> NDArray[np.int64]:
    """Sample distinct candidates for each endpoint of each link, none of which forms a known edge.

    Parameters
    ----------
    known
        All edges.
    links
        [m, 2] sources and destinations.
    seed
        The seed of the draws, which depend on it, the part and the number of the link alone.
    part
        `val` or `test`.
    num
        How many for each end. If no more than these are possible, they are all that are possible.
    ends
        The vertices that may be drawn.

    Returns
    -------
    [m, 2, K] int64 in place of the sources and of the destinations, with K at most `num` and at most the
    number of vertices; -1 fills up.
    """
    intervals = (ends.sources, ends.destinations)
    most = max(high - low for low, high in intervals)
    found = np.full((len(links), 2, min(num, most)), -1, np.int64)
    key, pairs = stream_key(seed, LINKS, 0, _KEYS[part]), np.ascontiguousarray(links, np.int64)
    for end, (low, high) in enumerate(intervals):
        edges = known.transposed if end else known
        longest = int(np.diff(edges.indptr).max(initial=0))
        drawn = np.empty((len(links), found.shape[2]), np.int64)
        drawn.fill(-1)
        draw_ends(
            *(edges.indptr, edges.indices, pairs, end, low, high, key, end * num),
            *(np.empty(longest + 2, np.int64), np.full(high - low, -1, np.int64), drawn),
        )
        found[:, end] = drawn
    return found
