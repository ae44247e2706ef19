"""Partition method that minimizes exchanged rows, especially in the busiest direction of any part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import pluralize
from hyrt.graph.partition.block_volumes import count_block_volumes
from hyrt.graph.partition.manifest import compute_imbalance as imbalance_of
from hyrt.graph.partition.method import DEFAULT_BOUNDS, PartBounds, ReportLine, check_partition_args
from hyrt.graph.partition.metis_parts import MetisParts, has_self_loops
from hyrt.graph.partition.refine import refine_parts
from hyrt.graph.topology import Topology

# Memory in bytes of `NeighborPartCounts` per edge, and of all other arrays per vertex.
_EDGE_BYTES = 6
_VERTEX_BYTES = 64
_ROUNDING = 1e-9


class VolumeParts:
    """METIS partition that is refined by moving vertices, which reduces the traffic in total and in the
    busiest direction.

    A part sends each of its rows once to every other part that has an edge from it, and receives rows from
    other parts. The traffic of the busiest direction is the largest number of rows that any part sends or
    receives. Parts get equal shares of non-zeros (in-edges and the diagonal) within 5 % of the mean; training
    vertices are not balanced. A bound of the number of vertices has precedence.

    If METIS's parts have less traffic in the busiest direction, but exceed the mean by more, the search is
    repeated with their imbalance as the bound, unless the user has set one. By default, the result is
    therefore never busier than the parts of METIS.
    """

    imbalance: float | None = 0.05
    bounds_vertices = True

    def check_installed(self) -> None:
        MetisParts().check_installed()

    def memory_bytes(self, num_vertices: int, num_edges: int) -> int:
        moves = _VERTEX_BYTES * num_vertices + _EDGE_BYTES * num_edges
        return max(MetisParts().memory_bytes(num_vertices, num_edges), moves)

    def homes(
        self,
        topology: Topology,
        training: NDArray[np.bool_],
        num_parts: int,
        seed: int,
        bounds: PartBounds = DEFAULT_BOUNDS,
        announce: ReportLine | None = None,
    ) -> NDArray[Any]:
        check_partition_args(topology, training, num_parts, seed)
        first = MetisParts().homes(topology, training, num_parts, seed, PartBounds(bounds.imbalance))
        if num_parts == 1:
            return first
        weights: NDArray[np.float64] = topology.in_degrees + np.float64(1)
        edges = _without_loops(topology)

        def refine(imbalance: float) -> _CountedParts:
            homes = refine_parts(*edges, first, weights, num_parts, 1 + imbalance, seed, bounds.vertices)
            return _CountedParts.of(topology, homes, weights, num_parts)

        allowed = self.imbalance if bounds.imbalance is None else bounds.imbalance
        assert allowed is not None
        by_metis, found = _CountedParts.of(topology, first, weights, num_parts), refine(allowed)
        fits = bounds.vertices is None or np.bincount(first).max() <= bounds.vertices
        if bounds.imbalance is None and fits and found.busiest > by_metis.busiest:
            allowed = max(allowed, by_metis.imbalance)
            found = refine(allowed)
        if announce is not None:
            announce(f"by metis   {by_metis.summary}")
            announce(f"by volume  {found.summary}")
            if found.imbalance > allowed * (1 + _ROUNDING) + _ROUNDING:
                capped = f"parts have at most {bounds.vertices:,} vertices, and " if bounds.vertices else ""
                announce(
                    f"a part exceeds the allowed number of non-zeros, {allowed:.1%} above the mean: "
                    f"{capped}one vertex alone has {weights.max() / weights.sum() * num_parts:.1%} of a "
                    "part's mean"
                )
        return found.homes


@dataclass(frozen=True, slots=True)
class _CountedParts:
    """Partition, with the traffic and weight of its parts."""

    homes: NDArray[Any]
    """Part of each vertex, [V] integers."""
    total: int
    """Total number of rows that parts send."""
    busiest: int
    """Number of rows in the busiest direction of any part."""
    mean: float
    """Mean number of rows that a part sends, which equals the mean number that a part receives."""
    imbalance: float
    """Largest number of non-zeros in a part divided by the mean, minus 1."""

    @classmethod
    def of(
        cls, topology: Topology, homes: NDArray[Any], weights: NDArray[np.float64], num_parts: int
    ) -> _CountedParts:
        """Count the traffic and the weight of parts."""
        needed = count_block_volumes(topology.indptr, topology.indices, homes, num_parts).needed
        loads = np.bincount(homes, weights, minlength=num_parts)
        return cls(
            homes=homes,
            total=int(needed.sum()),
            busiest=int(max(needed.sum(axis=0).max(), needed.sum(axis=1).max())),
            mean=float(needed.sum() / num_parts),
            imbalance=imbalance_of(loads.tolist()),
        )

    @property
    def summary(self) -> str:
        """Return the numbers as a line of text."""
        over = self.busiest / self.mean - 1 if self.mean else 0.0
        return (
            f"{pluralize(self.total, 'row')} sent · at most {self.busiest:,} sent or received by one part, "
            f"{over:.1%} above the mean · non-zeros at most {self.imbalance:.1%} above their mean"
        )


def _without_loops(topology: Topology) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the edges by destination without self-loops, which do not cause communication."""
    if not has_self_loops(topology):
        return topology.indptr, topology.indices
    into = np.repeat(np.arange(topology.num_vertices, dtype=topology.indices.dtype), topology.in_degrees)
    keep = topology.indices != into
    ends = np.concatenate([[0], np.cumsum(keep)])
    return ends[topology.indptr], topology.indices[keep]
