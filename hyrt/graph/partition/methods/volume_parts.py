"""Parts that send few rows, the one that sends most above all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.partition.methods.metis_parts import MetisParts, has_loops
from hyrt.graph.partition.volumes.refine import refined
from hyrt.graph.topology import Topology

# What `NeighborParts` keeps of an edge, and the orders, marks and copies of vertices.
_EDGE_BYTES = 6
_VERTEX_BYTES = 64
_MOST_OVER_MEAN = 1.05


class VolumeParts:
    """METIS by cut, with non-zeros balanced, and then moves that lower the largest and the total send volume.

    What a part sends are its rows, once to each part that has an edge from their vertices. Parts get equal
    shares of non-zeros, which are in-edges and the diagonal, within 5 % of the mean; training vertices are
    not balanced.
    """

    def check_installed(self) -> None:
        MetisParts().check_installed()

    def memory_bytes(self, num_vertices: int, num_edges: int) -> int:
        moves = _VERTEX_BYTES * num_vertices + _EDGE_BYTES * num_edges
        return max(MetisParts().memory_bytes(num_vertices, num_edges), moves)

    def homes(
        self, topology: Topology, training: NDArray[np.bool_], num_parts: int, seed: int
    ) -> NDArray[Any]:
        first = MetisParts().homes(topology, np.zeros_like(training), num_parts, seed)
        if num_parts == 1:
            return first
        weights: NDArray[np.float64] = topology.in_degrees + np.float64(1)
        return refined(*_without_loops(topology), first, weights, num_parts, _MOST_OVER_MEAN, seed)


def _without_loops(topology: Topology) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The edges by destination but for those of a vertex with itself, for which nothing is sent."""
    if not has_loops(topology):
        return topology.indptr, topology.indices
    into = np.repeat(np.arange(topology.num_vertices, dtype=topology.indices.dtype), topology.in_degrees)
    kept = topology.indices != into
    ends = np.concatenate([[0], np.cumsum(kept)])
    return ends[topology.indptr], topology.indices[kept]
