"""Vertices at which a gathering is needed, where it is not needed at all, and what each pass is given."""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.recycled_matrices import RecycledMatrices
from hyrt.fullgraph.row_stage import Masks
from hyrt.graph.topology import Topology
from hyrt.machine.kernels.kept_kernels import nb
from hyrt.machine.workers import Workers

Array = NDArray[Any]

MOST_EDGES = 0.25
"""With more of the edges than this part, the transpose of all is read, and nothing more is kept."""


@dataclass(frozen=True, slots=True)
class Destinations:
    """Some vertices, and the edges into them by source."""

    vertices: Array
    """[n] distinct vertices."""
    positions: Array
    """[V] int32, where each vertex is in `vertices`; -1 where it is not."""
    turned: tuple[Array, Array] | None
    """[V + 1] and [E into them]: where each source's edges start, and the position of each edge's destination
    in `vertices`. None where most edges go into them."""

    @classmethod
    def of(cls, vertices: Array, topology: Topology, *, turn: bool) -> Destinations | None:
        """Some vertices of a graph; None where they are all of them in order.

        Parameters
        ----------
        vertices
            [n] distinct vertices.
        topology
            The edges.
        turn
            Whether gradients will be taken back to the sources, again and again.
        """
        if len(vertices) == topology.num_vertices and (np.diff(vertices) == 1).all():
            return None
        positions = np.full(topology.num_vertices, -1, np.int32)
        positions[vertices] = np.arange(len(vertices), dtype=np.int32)
        # In-degrees may count edges that other processes have.
        edges = int((topology.indptr[vertices + 1] - topology.indptr[vertices]).sum(dtype=np.int64))
        if not turn or edges > MOST_EDGES * topology.num_edges:
            return cls(vertices, positions, None)
        starts = np.zeros(topology.num_vertices + 1, np.int32 if edges < 2**31 else np.int64)
        rows = np.empty(edges, np.int32)
        _turn_rows(topology.indptr, topology.indices, vertices, starts, rows)
        return cls(vertices, positions, (starts, rows))


@dataclass(frozen=True, slots=True)
class GatheringPass:
    """Where a gathering is needed, and what it may use."""

    workers: Workers
    """The team of threads that computes."""
    at: Destinations | None = None
    """The vertices that gather; all by default."""
    masks: Masks | None = None
    """The key of the step's dropout; None drops nothing."""
    memory: RecycledMatrices | None = None
    """Forward, where matrices are taken from for what the backward pass needs besides; None where there is
    none."""
    overwrite: bool = False
    """Forward, whether nobody reads the messages afterwards, but `backward` where `reads_messages_back`."""
    accumulate: bool = False
    """Backward, whether the gradients are added to what is there."""


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _turn_rows(indptr, columns, chosen, starts, rows):
    """The edges of chosen rows by their columns, in the order of the rows."""
    num = len(starts) - 1
    for k in range(len(chosen)):
        for e in range(indptr[chosen[k]], indptr[chosen[k] + 1]):
            starts[columns[e] + 1] += 1
    for j in range(num):
        starts[j + 1] += starts[j]
    for k in range(len(chosen)):
        for e in range(indptr[chosen[k]], indptr[chosen[k] + 1]):
            j = columns[e]
            rows[starts[j]] = k
            starts[j] += 1
    for j in range(num, 0, -1):
        starts[j] = starts[j - 1]
    starts[0] = 0
