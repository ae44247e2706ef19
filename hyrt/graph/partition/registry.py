"""Partition methods by name, and two methods with parts of equal size: consecutive and random vertices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.errors import DataError, join_names
from hyrt.graph.partition.method import (
    DEFAULT_BOUNDS,
    PartBounds,
    PartitionMethod,
    ReportLine,
    check_partition_args,
)
from hyrt.graph.partition.metis_parts import MetisParts
from hyrt.graph.partition.volume_parts import VolumeParts
from hyrt.graph.topology import Topology

# Memory per vertex for temporary arrays of vertex numbers, in bytes.
_BLOCK_VERTEX_BYTES = 24


class BlockParts:
    """Partition into blocks of consecutive vertices, whose sizes differ by at most one."""

    imbalance: float | None = None
    bounds_vertices = True

    def check_installed(self) -> None:
        """Do nothing, because there are no dependencies."""

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


# Memory per vertex for the part indices and their shuffled copy, in bytes.
_RANDOM_VERTEX_BYTES = 16


class RandomParts:
    """Random partition into parts whose sizes differ by at most one."""

    imbalance: float | None = None
    bounds_vertices = True

    def check_installed(self) -> None:
        """Do nothing, because there are no dependencies."""

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


METHODS: Mapping[str, Callable[[], PartitionMethod]] = MappingProxyType(
    {"random": RandomParts, "block": BlockParts, "metis": MetisParts, "volume": VolumeParts}
)


def get_partition_method(name: str) -> PartitionMethod:
    """Return the partition method named `name` after checking its dependencies.

    Raises DataError if the method does not exist, or one of its dependencies is missing.
    """
    if not isinstance(name, str) or name not in METHODS:
        word = name if isinstance(name, str) and name.isprintable() else show(name)
        raise DataError(f"--method {word} is unknown: choose {join_names(METHODS, 'or')}")
    method = METHODS[name]()
    method.check_installed()
    return method
