"""Partition method with random parts of equal sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.partition.methods.method import DEFAULT_BOUNDS, PartBounds, ReportLine, check_partition_args
from hyrt.graph.topology import Topology

# Memory per vertex for the part indices and their shuffled copy.
_RANDOM_VERTEX_BYTES = 16


class RandomParts:
    """Random partition; part sizes differ by at most one."""

    imbalance: float | None = None
    bounds_vertices = True

    def check_installed(self) -> None:
        """Return without checks, because there are no dependencies."""

    def memory_bytes(self, num_vertices: int, num_edges: int) -> int:
        return _RANDOM_VERTEX_BYTES * num_vertices

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
        part_ids = np.arange(topology.num_vertices) % num_parts
        np.random.default_rng(seed).shuffle(part_ids)
        return part_ids
