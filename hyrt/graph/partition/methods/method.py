"""What a partition method is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.topology import Topology

Announce = Callable[[str], None]


class PartitionMethod(Protocol):
    """Decides which part each vertex belongs to: its home."""

    imbalance: float | None
    """How much more than the mean a part may weigh by default, as a share of it; None where parts have no
    weight."""

    def check_installed(self) -> None:
        """See that what the method needs is installed.

        Raises
        ------
        DataError
            If it is not, saying what to install.
        """
        ...

    def memory_bytes(self, num_vertices: int, num_edges: int) -> int:
        """Bytes of memory that `homes` takes at most, beside the graph and the result."""
        ...

    def homes(
        self,
        topology: Topology,
        training: NDArray[np.bool_],
        num_parts: int,
        seed: int,
        imbalance: float | None = None,
        announce: Announce | None = None,
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
        imbalance
            How much more than the mean a part may weigh, as a share of it; by default the method's own.
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
