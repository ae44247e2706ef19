"""Parts that send few rows, the one that sends most above all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.partition.figures import imbalance as imbalance_of
from hyrt.graph.partition.methods.method import BY_METHOD, Announce, PartBounds
from hyrt.graph.partition.methods.metis_parts import MetisParts, has_loops
from hyrt.graph.partition.volumes.refine import refined
from hyrt.graph.partition.volumes.send_volumes import send_volumes
from hyrt.graph.topology import Topology
from hyrt.quantities import counted

# What `NeighborParts` keeps of an edge, and the orders, marks and copies of vertices.
_EDGE_BYTES = 6
_VERTEX_BYTES = 64


class VolumeParts:
    """METIS by cut, with non-zeros balanced, and then moves that lower the largest and the total send volume.

    What a part sends are its rows, once to each part that has an edge from their vertices. Parts get equal
    shares of non-zeros, which are in-edges and the diagonal, within 5 % of the mean; training vertices are
    not balanced. A bound on vertices comes before all of these.
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
        bounds: PartBounds = BY_METHOD,
        announce: Announce | None = None,
    ) -> NDArray[Any]:
        allowed = self.imbalance if bounds.imbalance is None else bounds.imbalance
        assert allowed is not None
        base = MetisParts()
        assert base.imbalance is not None
        nobody = np.zeros_like(training)
        first = base.homes(topology, nobody, num_parts, seed, PartBounds(min(allowed, base.imbalance)))
        if num_parts == 1:
            return first
        weights: NDArray[np.float64] = topology.in_degrees + np.float64(1)
        edges = _without_loops(topology)
        found = refined(*edges, first, weights, num_parts, 1 + allowed, seed, bounds.vertices)
        if announce is not None:
            for name, homes in (("by metis", first), ("by volume", found)):
                announce(_quality(name, topology, homes, weights, num_parts))
            loads = np.bincount(found, weights, minlength=num_parts)
            if loads.max() > (1 + allowed) * loads.mean():
                capped = f"parts have at most {bounds.vertices:,} vertices, and " if bounds.vertices else ""
                announce(
                    f"more non-zeros than the {allowed:.1%} over the mean that are allowed: {capped}one "
                    f"vertex alone has {weights.max() / loads.mean():.1%} of a part's mean"
                )
        return found


def _quality(
    name: str, topology: Topology, homes: NDArray[Any], weights: NDArray[np.float64], num_parts: int
) -> str:
    """What parts send and weigh, in a line."""
    sends = send_volumes(topology.indptr, topology.indices, homes, num_parts)
    loads = np.bincount(homes, weights, minlength=num_parts)
    return (
        f"{name:<9}  {counted(int(sends.sum()), 'row')} sent · at most {sends.max():,} by a part, "
        f"{imbalance_of(sends.tolist()):.1%} over the mean · non-zeros at most "
        f"{imbalance_of(loads.tolist()):.1%} over it"
    )


def _without_loops(topology: Topology) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The edges by destination but for those of a vertex with itself, for which nothing is sent."""
    if not has_loops(topology):
        return topology.indptr, topology.indices
    into = np.repeat(np.arange(topology.num_vertices, dtype=topology.indices.dtype), topology.in_degrees)
    kept = topology.indices != into
    ends = np.concatenate([[0], np.cumsum(kept)])
    return ends[topology.indptr], topology.indices[kept]
