"""Grid of P x P edge chunks of a graph, and the vertices that each chunk needs (NeuGraph, section 3.1)."""

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
    """[P] vertices per interval."""
    edges: Floats
    """[P, P] edges."""
    sources: Floats
    """[P, P] vertices of interval i with an edge to interval j."""
    destinations: Floats
    """[P, P] vertices of interval j with an edge from interval i."""
    into: Floats | None = None
    """[Q] destinations per interval, if their intervals differ from those of the sources; entries are then
    [P, Q]."""
    own: Floats | None = None
    """[P, Q] vertices in both intervals, if the destination intervals differ."""

    @property
    def parts(self) -> int:
        """P."""
        return len(self.rows)

    @property
    def rows_into(self) -> Floats:
        """[Q] destinations per interval."""
        return self.rows if self.into is None else self.into

    @property
    def in_both(self) -> Floats:
        """[P, Q] vertices in both intervals."""
        return np.diag(self.rows) if self.own is None else self.own

    @property
    def turned(self) -> GridSizes:
        """The transposed grid: the same edges from destinations to sources."""
        return GridSizes(
            rows=self.rows_into,
            edges=self.edges.T,
            sources=self.destinations.T,
            destinations=self.sources.T,
            into=self.rows,
            own=self.in_both.T,
        )


def counted_grid(indptr: NDArray[Any], indices: NDArray[Any], parts: int) -> GridSizes:
    """Count the chunks of a graph whose vertices are divided into intervals of equal size.

    Parameters
    ----------
    indptr, indices
        [V + 1] and [E], source vertices of each destination's edges.
    parts
        P, at least 1.
    """
    num = len(indptr) - 1
    bounds = (np.arange(parts + 1) * num) // parts
    source = np.searchsorted(bounds, indices, side="right") - 1
    destination = np.searchsorted(bounds, np.arange(num), side="right") - 1
    edge_destination = np.repeat(np.arange(num), np.diff(indptr))
    shape = (parts, parts)

    def counts(i: NDArray[Any], j: NDArray[Any]) -> Floats:
        return np.bincount(i * parts + j, minlength=parts * parts).reshape(shape).astype(np.float64)

    by_source = np.unique(indices.astype(np.int64) * parts + destination[edge_destination])
    by_destination = np.unique(edge_destination.astype(np.int64) * parts + source)
    source_of = np.searchsorted(bounds, by_source // parts, side="right") - 1
    return GridSizes(
        rows=np.diff(bounds).astype(np.float64),
        edges=counts(source, destination[edge_destination]),
        sources=counts(source_of, by_source % parts),
        destinations=counts(by_destination % parts, destination[by_destination // parts]),
    )


def expected_grid(degrees: DegreeDistribution, parts: int, *, inside: float | None = None) -> GridSizes:
    """Estimate the chunks of a graph from its degrees.

    Each edge of a vertex independently stays in its interval with a given probability, and otherwise leads to
    one of the other intervals with equal probability. Of n vertices with d edges each, n (1 - (1 - p)^d) then
    have at least one edge to an interval that an edge leads to with probability p.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    parts
        P, at least 1.
    inside
        Share of the edges that stay in their interval, which is increased by locality-preserving vertex
        orders; None for a random order, 1/P.
    """
    share = np.full((parts, parts), 1.0 if parts == 1 else 1 / parts)
    if inside is not None and parts > 1:
        share[:] = (1 - inside) / (parts - 1)
        np.fill_diagonal(share, inside)
    rows = np.full(parts, degrees.num_vertices / parts)
    per_interval = degrees.counts / parts

    # At most two distinct values for all P x P chunks.
    shares, number = np.unique(share, return_inverse=True)

    def touched(class_degrees: Floats) -> Floats:
        missed = (1 - shares)[None] ** class_degrees[:, None]
        touched_rows: Floats = (per_interval @ (1 - missed))[number].reshape(share.shape)
        return touched_rows

    return GridSizes(
        rows=rows,
        edges=share * (degrees.num_edges / parts),
        sources=touched(degrees.out_degrees),
        destinations=touched(degrees.in_degrees),
    )


def expected_target_grid(degrees: DegreeDistribution, parts: int, targets: float, edges: float) -> GridSizes:
    """Estimate the chunks of the edges into target vertices, which are evenly distributed among all vertices.

    The targets are divided into the fewest intervals that are at most as long as the intervals of all
    vertices.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    parts
        P, number of source intervals.
    targets, edges
        Number of targets, and of edges into targets.
    """
    num = max(1, math.ceil(targets / math.ceil(degrees.num_vertices / parts)))
    rows, into = np.full(parts, degrees.num_vertices / parts), np.full(num, targets / num)
    class_shares = degrees.counts / degrees.num_vertices

    def touched(class_degrees: Floats, fraction: float, vertices: float) -> Floats:
        return np.full(
            (parts, num), vertices * float((class_shares * (1 - (1 - fraction) ** class_degrees)).sum())
        )

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
