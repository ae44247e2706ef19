"""Ranges of the source and destination vertices of links."""

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
    """Vertex ranges of link sources and destinations: all vertices, or one vertex type each."""

    sources: tuple[int, int]
    """Source range: first vertex, and last vertex + 1."""
    destinations: tuple[int, int]
    """Destination range."""
    names: tuple[str, str] | None = None
    """Vertex types of sources and destinations, in a heterogeneous graph."""

    __repr__ = one_line

    @staticmethod
    def any_of(num_vertices: int) -> LinkEnds:
        """Allow every vertex for both endpoints."""
        return LinkEnds((0, num_vertices), (0, num_vertices))

    @staticmethod
    def of_relation(types: GraphTypes, relation: Relation) -> LinkEnds:
        """Use the vertex types of a relation."""
        return LinkEnds(
            types.interval(relation.source),
            types.interval(relation.destination),
            (relation.source, relation.destination),
        )

    @property
    def num_pairs(self) -> int:
        """Number of pairs of two different vertices."""
        (low, high), (first, last) = self.sources, self.destinations
        both = max(0, min(high, last) - max(low, first))
        return (high - low) * (last - first) - both

    def all_pairs(self) -> NDArray[np.int64]:
        """Return [n, 2] all pairs, a vertex with itself included."""
        sources, destinations = np.arange(*self.sources), np.arange(*self.destinations)
        grid = np.meshgrid(sources, destinations, indexing="ij")
        return np.stack([each.ravel() for each in grid], axis=1)

    def drawn(self, bits: NDArray[np.uint64], ends: NDArray[Any]) -> NDArray[np.int64]:
        """Map 64 uniform bits per endpoint to uniformly distributed vertices.

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
        """Return [n, 2] which endpoints of [n, 2] pairs are outside the allowed ranges."""
        low, high = np.array([self.sources, self.destinations]).T
        found: NDArray[np.bool_] = (pairs < low) | (pairs >= high)
        return found
