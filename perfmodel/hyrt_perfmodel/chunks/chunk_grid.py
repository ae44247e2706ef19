"""The edges of a graph in P x P chunks, and how many vertices each chunk needs (NeuGraph, section 3.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.degrees import DegreeDistribution

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class GridSizes:
    """Sizes of chunks; entry (i, j) is the chunk of edges from interval i to interval j."""

    rows: Floats
    """[P] vertices of each interval."""
    edges: Floats
    """[P, P] edges."""
    sources: Floats
    """[P, P] vertices of interval i that have an edge to interval j."""
    destinations: Floats
    """[P, P] vertices of interval j that have an edge from interval i."""
    into: Floats | None = None
    """[Q] destinations of each interval, where they are cut otherwise than the sources; entries are [P, Q]
    then."""
    own: Floats | None = None
    """[P, Q] vertices that are in both intervals, where destinations are cut otherwise."""

    @property
    def parts(self) -> int:
        """P."""
        return len(self.rows)

    @property
    def rows_into(self) -> Floats:
        """[Q] destinations of each interval."""
        return self.rows if self.into is None else self.into

    @property
    def in_both(self) -> Floats:
        """[P, Q] vertices that are in both intervals."""
        return np.diag(self.rows) if self.own is None else self.own

    @property
    def turned(self) -> GridSizes:
        """The same edges from their destinations to their sources."""
        return GridSizes(
            rows=self.rows_into,
            edges=self.edges.T,
            sources=self.destinations.T,
            destinations=self.sources.T,
            into=self.rows,
            own=self.in_both.T,
        )


def counted_grid(indptr: NDArray[Any], indices: NDArray[Any], parts: int) -> GridSizes:
    """The chunks of a graph, whose vertices are cut into intervals of equal size.

    Parameters
    ----------
    indptr, indices
        [V + 1] and [E], the sources of each destination's edges.
    parts
        P, at least 1.
    """
    num = len(indptr) - 1
    bounds = (np.arange(parts + 1) * num) // parts
    source = np.searchsorted(bounds, indices, side="right") - 1
    destination = np.searchsorted(bounds, np.arange(num), side="right") - 1
    of_edge = np.repeat(np.arange(num), np.diff(indptr))
    shape = (parts, parts)

    def counts(i: NDArray[Any], j: NDArray[Any]) -> Floats:
        return np.bincount(i * parts + j, minlength=parts * parts).reshape(shape).astype(np.float64)

    by_source = np.unique(indices.astype(np.int64) * parts + destination[of_edge])
    by_destination = np.unique(of_edge.astype(np.int64) * parts + source)
    source_of = np.searchsorted(bounds, by_source // parts, side="right") - 1
    return GridSizes(
        rows=np.diff(bounds).astype(np.float64),
        edges=counts(source, destination[of_edge]),
        sources=counts(source_of, by_source % parts),
        destinations=counts(by_destination % parts, destination[by_destination // parts]),
    )


def expected_grid(degrees: DegreeDistribution, parts: int, *, inside: float | None = None) -> GridSizes:
    """The chunks of a graph of which only the degrees are known.

    Each edge of a vertex independently stays inside its interval with one probability, and else goes to one
    of the other intervals with equal probability; so of n vertices with d edges each, n (1 - (1 - p)^d) have
    one that goes where an edge goes with probability p.

    Parameters
    ----------
    degrees
        How many edges vertices have.
    parts
        P, at least 1.
    inside
        Share of the edges that stay in their interval, which a locality-preserving order raises; None for a
        random order, 1/P.
    """
    share = np.full((parts, parts), 1.0 if parts == 1 else 1 / parts)
    if inside is not None and parts > 1:
        share[:] = (1 - inside) / (parts - 1)
        np.fill_diagonal(share, inside)
    rows = np.full(parts, degrees.num_vertices / parts)
    per_interval = degrees.counts / parts

    # There are two at the most, for all P x P chunks.
    shares, number = np.unique(share, return_inverse=True)

    def touched(of: Floats) -> Floats:
        missed = (1 - shares)[None] ** of[:, None]
        found: Floats = (per_interval @ (1 - missed))[number].reshape(share.shape)
        return found

    return GridSizes(
        rows=rows,
        edges=share * (degrees.num_edges / parts),
        sources=touched(degrees.out_degrees),
        destinations=touched(degrees.in_degrees),
    )


def expected_target_grid(degrees: DegreeDistribution, parts: int, targets: float, edges: float) -> GridSizes:
    """The chunks of the edges into some vertices, which are spread evenly and like all others.

    They are cut into as few intervals as are no longer than those of all vertices.

    Parameters
    ----------
    degrees
        How many edges vertices have.
    parts
        P, the intervals of the sources.
    targets, edges
        How many vertices there are, and edges into them.
    """
    num = max(1, math.ceil(targets / math.ceil(degrees.num_vertices / parts)))
    rows, into = np.full(parts, degrees.num_vertices / parts), np.full(num, targets / num)
    of_interval = degrees.counts / degrees.num_vertices

    def touched(of: Floats, part: float, vertices: float) -> Floats:
        return np.full((parts, num), vertices * float((of_interval * (1 - (1 - part) ** of)).sum()))

    borders, starts = np.arange(parts + 1) / parts, np.arange(num + 1) / num
    ends = np.minimum(borders[1:, None], starts[None, 1:])
    shared = np.maximum(0.0, ends - np.maximum(borders[:-1, None], starts[None, :-1]))
    return GridSizes(
        rows=rows,
        edges=np.full((parts, num), edges / (parts * num)),
        sources=touched(degrees.out_degrees, min(1.0, into[0] / degrees.num_vertices), rows[0]),
        destinations=touched(degrees.in_degrees, 1 / parts, into[0]),
        into=into,
        own=shared * targets,
    )
