"""Which vertices the two ends of a link may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.typed.graph_types import GraphTypes, Relation
from hyrt.machine.generator import ints_below
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True)
class LinkEnds:
    """The vertices that sources and destinations of links are drawn from: all, or those of a type each."""

    sources: tuple[int, int]
    """The first vertex that may be a source, and the one after the last."""
    destinations: tuple[int, int]
    """The same of destinations."""
    names: tuple[str, str] | None = None
    """The types of both, where vertices have types."""

    __repr__ = one_line

    @staticmethod
    def any_of(num_vertices: int) -> LinkEnds:
        """Both ends may be any vertex."""
        return LinkEnds((0, num_vertices), (0, num_vertices))

    @staticmethod
    def of_relation(types: GraphTypes, relation: Relation) -> LinkEnds:
        """Ends of the types that a relation is between."""
        return LinkEnds(
            types.interval(relation.source),
            types.interval(relation.destination),
            (relation.source, relation.destination),
        )

    @property
    def num_pairs(self) -> int:
        """How many pairs of two different vertices there are."""
        (low, high), (first, last) = self.sources, self.destinations
        both = max(0, min(high, last) - max(low, first))
        return (high - low) * (last - first) - both

    def all_pairs(self) -> NDArray[np.int64]:
        """Return [n, 2] all pairs, a vertex with itself included."""
        sources, destinations = np.arange(*self.sources), np.arange(*self.destinations)
        grid = np.meshgrid(sources, destinations, indexing="ij")
        return np.stack([each.ravel() for each in grid], axis=1)

    def drawn(self, bits: NDArray[np.uint64], ends: NDArray[Any]) -> NDArray[np.int64]:
        """Vertices for ends, uniformly, from 64 uniform bits each.

        Parameters
        ----------
        bits
            [...] uint64.
        ends
            [...] integers, 0 for a source and 1 for a destination; of a shape that `bits` can be put into.

        Returns
        -------
        [...] int64.
        """
        found = np.empty(bits.shape, np.int64)
        ends = np.broadcast_to(ends, bits.shape)
        for end, (low, high) in enumerate((self.sources, self.destinations)):
            chosen = ends == end
            found[chosen] = low + ints_below(bits[chosen], high - low)
        return found

    def wrong(self, pairs: NDArray[Any]) -> NDArray[np.bool_]:
        """[n, 2] which ends of [n, 2] pairs are no such vertices."""
        low, high = np.array([self.sources, self.destinations]).T
        found: NDArray[np.bool_] = (pairs < low) | (pairs >= high)
        return found
