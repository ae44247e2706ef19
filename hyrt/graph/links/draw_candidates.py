"""Vertices that a link's ends are ranked among."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.links.known_edges import are_edges
from hyrt.graph.links.link_ends import LinkEnds
from hyrt.graph.topology import Topology
from hyrt.machine.generator import LINKS, bits_of, stream_key, vertex_streams

# A candidate that is known to be right is drawn again so often, and left out then.
_TRIES = 8
_KEYS = {"val": 5, "test": 6}


def draw_candidates(
    known: Topology, links: NDArray[Any], seed: int, part: str, num: int, ends: LinkEnds
) -> NDArray[np.int64]:
    """Draw, for each end of each link, vertices that would make no known edge in its place, uniformly.

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
        How many for each end.
    ends
        The vertices that may be one.

    Returns
    -------
    [m, 2, num] int64 in place of the sources and of the destinations; -1 where none was found, as where most
    pairs are edges.
    """
    streams = vertex_streams(stream_key(seed, LINKS, 0, _KEYS[part]), np.arange(len(links)))
    found = np.full((len(links), 2, num), -1, np.int64)
    places = np.arange(2 * num).reshape(2, num)
    row, end, place = (at.ravel() for at in np.indices(found.shape))
    for attempt in range(_TRIES):
        counters = places[end, place] + attempt * 2 * num
        drawn = ends.drawn(bits_of(streams[row], counters), end)
        pairs = links[row].astype(np.int64)
        pairs[np.arange(len(row)), end] = drawn
        right = (pairs[:, 0] != pairs[:, 1]) & ~are_edges(known, pairs)
        found[row[right], end[right], place[right]] = drawn[right]
        row, end, place = row[~right], end[~right], place[~right]
        if not len(row):
            break
    return found
