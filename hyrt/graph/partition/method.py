"""Interface of partition methods."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_array, check_int, check_type
from hyrt.graph.topology import Topology

ReportLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PartBounds:
    """Upper bounds of the size of a part."""

    imbalance: float | None = None
    """Maximum excess of a part's weight relative to the mean; None for the default of the method."""
    vertices: int | None = None
    """Maximum number of vertices; None for no bound."""


DEFAULT_BOUNDS = PartBounds()


def check_partition_args(topology: Any, training: Any, num_parts: Any, seed: Any) -> None:
    """Check the arguments of `PartitionMethod.homes`.

    Raises ArgumentError for an invalid argument, and DataError if arrays of the topology are inconsistent.
    """
    edges = check_type("topology", topology, Topology, "pass the topology of a graph").checked
    check_array("training", training, "b", (edges.num_vertices,), "a mask of the training vertices")
    check_int("num_parts", num_parts, 1, edges.num_vertices)
    check_int("seed", seed, 0, 2**64 - 1)


class PartitionMethod(Protocol):
    """Method that assigns each vertex to a part (its home)."""

    imbalance: float | None
    """Default maximum excess of a part's weight relative to the mean; None if there are no weights."""
    bounds_vertices: bool
    """Whether the method enforces a bound on the number of vertices."""

    def check_installed(self) -> None:
        """Raise DataError if a package that the method needs is missing; the message gives its name."""
        ...

    def memory_bytes(self, num_vertices: int, num_edges: int) -> int:
        """Return the peak memory of `homes` in bytes, without the graph and the result."""
        ...

    def homes(
        self,
        topology: Topology,
        training: NDArray[np.bool_],
        num_parts: int,
        seed: int,
        bounds: PartBounds = DEFAULT_BOUNDS,
        announce: ReportLine | None = None,
    ) -> NDArray[Any]:
        """Assign each vertex to a part.

        Parameters
        ----------
        topology
            All edges.
        training
            Mask [V] of the training vertices, which are balanced between parts.
        num_parts
            Number of parts P, at most V.
        seed
            Seed of random decisions; equal seeds give equal results.
        bounds
            Bounds of each part. A bound of the number of vertices is at least V / P, and is only passed to
            methods that enforce it.
        announce
            Callback for lines about the result.

        Returns
        -------
        Part of each vertex, [V] integers in 0..P-1. No part is empty.

        Raises
        ------
        DataError
            If the method cannot divide the graph into this number of parts.
        """
        ...
