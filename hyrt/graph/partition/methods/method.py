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
    """Upper bounds on a part."""

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
        Naming the argument.
    DataError
        If the topology's arrays are not those of a graph.
    """
    edges = check_type("topology", topology, Topology, "give the topology of a graph").checked
    check_array("training", training, "b", (edges.num_vertices,), "True for the vertices to train on")
    check_int("num_parts", num_parts, 1, edges.num_vertices)
    check_int("seed", seed, 0, 2**64 - 1)


class PartitionMethod(Protocol):
    """Decides which part each vertex belongs to: its home."""

    imbalance: float | None
    """How much more than the mean a part may weigh by default, as a share of it; None where parts have no
    weight."""
    bounds_vertices: bool
    """Whether no part has more vertices than it may."""

    def check_installed(self) -> None:
        """Check that the packages of the method are installed.

        Raises
        ------
        DataError
            If it is not, saying what to install.
        """
        ...

    def memory_bytes(self, num_vertices: int, num_edges: int) -> int:
        """Return the maximum memory of `homes` in bytes, without the graph and the result."""
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
        """Find the home of each vertex.

        Parameters
        ----------
        topology
            All edges.
        training
            [V], the vertices that are trained on, which are to be spread evenly.
        num_parts
            The number of parts, P, at most V.
        seed
            The seed of whatever is drawn: equal ones give equal homes.
        bounds
            What a part may have. A number of vertices is at least V / P, and given only to methods that keep
            to it.
        announce
            Takes lines about what is found.

        Returns
        -------
        [V] integers in 0..P-1; no part is empty.

        Raises
        ------
        DataError
            If the method cannot cut this graph into so many parts.
        """
        ...
