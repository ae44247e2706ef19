"""Partition method with parts of consecutive vertices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.partition.methods.method import DEFAULT_BOUNDS, PartBounds, ReportLine, check_partition_args
from hyrt.graph.topology import Topology

# Memory per vertex for temporary arrays of vertex numbers.
_BLOCK_VERTEX_BYTES = 24


class BlockParts:
    """Partition into blocks of consecutive vertices; part sizes differ by at most one."""

    imbalance: float | None = None
    bounds_vertices = True

    def check_installed(self) -> None:
        """Return without checks, because there are no dependencies."""

    def memory_bytes(self, num_vertices: int, num_edges: int) -> int:
        return _BLOCK_VERTEX_BYTES * num_vertices

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
        return np.arange(topology.num_vertices) * num_parts // topology.num_vertices
