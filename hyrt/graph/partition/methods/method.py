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
    """Upper bounds on the size of a part."""

    imbalance: float | None = None
    """How much more than the mean it may weigh, as a share of it; None for the method's own bound."""
    vertices: int | None = None
    """How many vertices; None for any number."""


DEFAULT_BOUNDS = PartBounds()
"""The method's own bound of the weight, and no other."""


def check_partition_args(topology: Any, training: Any, num_parts: Any, seed: Any) -> None:
    """Check the arguments of `PartitionMethod.homes`.

    Raises
    ------
    ArgumentError
        Names the invalid argument.
    DataError
        If the topology's arrays are inconsistent.
    """
    edges = check_type("topology", topology, Topology, "give the topology of a graph").checked
    check_array("training", training, "b", (edges.num_vertices,), "True for the vertices to train on")
    check_int("num_parts", num_parts, 1, edges.num_vertices)
    check_int("seed", seed, 0, 2**64 - 1)


class PartitionMethod(Protocol):
    """Interface of a partition method, which assigns each vertex to a part (its home)."""

    imbalance: float | None
    """How much more than the mean a part may weigh by default, as a share of it; None where parts have no
    weight."""
    bounds_vertices: bool
    """Whether no part has more vertices than it may."""

    def check_installed(self) -> None:
        """Check that the packages that the method needs are installed.

        Raises
        ------
        DataError
            If a package is missing; names the package to install.
        """
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
            [V], whether each vertex is a training vertex; training vertices are balanced between parts.
        num_parts
            Number of parts, P, at most V.
        seed
            Seed of random decisions: equal seeds give equal results.
        bounds
            Upper bounds on each part. A bound on the number of vertices is at least V / P, and is passed only
            to methods that enforce it.
        announce
            Receives lines about the results of the method.

        Returns
        -------
        [V] integers in 0..P-1; no part is empty.

        Raises
        ------
        DataError
            If the method cannot divide this graph into this number of parts.
        """
        ...
