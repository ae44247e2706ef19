"""Negative sampling: vertex pairs without a link, for each link of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.links.known_edges import are_edges
from hyrt.graph.links.link_ends import LinkEnds
from hyrt.graph.topology import Topology
from hyrt.machine.generator import LINKS, bits_of, ints_below, stream_key, vertex_streams
from hyrt.quantities import one_line

NegativeKind = Literal["uniform", "degree", "batch", "given"]
"""What is drawn in place of an end of a link: any vertex; one by its number of edges; the same end of another
link of the step; or, in place of both, a pair of a list."""

# Number of attempts to sample a pair that is not an edge; the last one is kept.
_TRIES = 8
_STEP = 7


@dataclass(frozen=True, slots=True)
class Negatives:
    """Samples vertex pairs without a link."""

    kind: NegativeKind
    num: int
    """`kind` and `num`: what is drawn, and how many pairs for each link."""
    seed: int
    """The seed of all draws."""
    trained: Topology
    """The edges that may be known in training: pairs that are edges are drawn again."""
    ends: LinkEnds
    """The vertices that links are between."""
    given: NDArray[Any] | None = None
    """[n, 2] the pairs of `given`."""

    __repr__ = one_line

    def draw(
        self, step: int, units: NDArray[Any], links: NDArray[Any], of_step: NDArray[Any]
    ) -> NDArray[np.int64]:
        """Sample [n, num, 2] pairs.

        Parameters
        ----------
        step
            Step of the run.
        units
            [n] the numbers of links.
        links
            [n, 2] their sources and destinations.
        of_step
            [S, 2] the links of the whole step, in its order.
        """
        streams = vertex_streams(stream_key(self.seed, LINKS, step, _STEP), units)
        row, place = (at.ravel() for at in np.indices((len(units), self.num)))
        pairs = np.repeat(links.astype(np.int64), self.num, axis=0)
        left = np.arange(len(pairs))
        for attempt in range(_TRIES):
            counters = place[left] + self.num * attempt
            bits = bits_of(streams[row[left]], 2 * counters)
            if self.kind == "given":
                assert self.given is not None
                pairs[left] = self.given[ints_below(bits, len(self.given))]
                break
            # The other number of the two says which end stays.
            ends = ints_below(bits_of(streams[row[left]], 2 * counters + 1), 2)
            pairs[left] = links[row[left]]
            pairs[left, ends] = self._vertices(bits, ends, of_step)
            drawn = pairs[left]
            left = left[(drawn[:, 0] == drawn[:, 1]) | are_edges(self.trained, drawn)]
            if not len(left):
                break
        return pairs.reshape(len(units), self.num, 2)

    def _vertices(
        self, bits: NDArray[np.uint64], ends: NDArray[np.int64], of_step: NDArray[Any]
    ) -> NDArray[Any]:
        """Return [n] vertices for the ends, from one random number each."""
        topology = self.trained
        if self.kind == "uniform":
            return self.ends.drawn(bits, ends)
        if self.kind == "degree":
            # Any end of an edge: a vertex is one as often as it has edges there.
            at = ints_below(bits, topology.num_edges)
            into = np.searchsorted(topology.indptr, at, side="right") - 1
            return np.where(ends == 0, topology.indices[at], into)
        return of_step[ints_below(bits, len(of_step)), ends]
