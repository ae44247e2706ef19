"""Subset of vertices at which a gather is needed, and the context of one gather call."""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.matrix_pool import MatrixPool
from hyrt.fullgraph.plan import DropoutKey
from hyrt.graph.topology import Topology
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.workers import Workers

Array = NDArray[Any]

MAX_TRANSPOSED_FRACTION = 0.25
"""Maximum fraction of the edges for which a subset gets its own transpose."""


@dataclass(frozen=True, slots=True)
class DestinationSubset:
    """A subset of the vertices, with the transpose of its in-edges."""

    vertices: Array
    """[n] distinct vertices."""
    positions: Array
    """[V] int32 position of each vertex in `vertices`; -1 if it is not in the subset."""
    transposed: tuple[Array, Array] | None
    """CSR by source of the edges into the subset, or None if the subset has most of the edges.

    [V + 1] first edge of each source, and [E] position in `vertices` of each edge's destination.
    """

    @classmethod
    def from_vertices(
        cls, vertices: Array, topology: Topology, *, transpose: bool
    ) -> DestinationSubset | None:
        """Build the subset of distinct `vertices` [n]; None if it is all vertices in ascending order.

        Repeated backward passes need the `transpose`.
        """
        if len(vertices) == topology.num_vertices and (np.diff(vertices) == 1).all():
            return None
        positions = np.full(topology.num_vertices, -1, np.int32)
        positions[vertices] = np.arange(len(vertices), dtype=np.int32)
        # Do not use in-degrees: they may count edges that other processes have.
        edges = int((topology.indptr[vertices + 1] - topology.indptr[vertices]).sum(dtype=np.int64))
        if not transpose or edges > MAX_TRANSPOSED_FRACTION * topology.num_edges:
            return cls(vertices, positions, None)
        starts = np.zeros(topology.num_vertices + 1, np.int32 if edges < 2**31 else np.int64)
        rows = np.empty(edges, np.int32)
        _transpose_rows(topology.indptr, topology.indices, vertices, starts, rows)
        return cls(vertices, positions, (starts, rows))


@dataclass(frozen=True, slots=True)
class GatherContext:
    """Context of one gather call: its destinations and resources."""

    workers: Workers
    destinations: DestinationSubset | None = None
    """Destinations; all vertices by default."""
    masks: DropoutKey | None = None
    """Key of the step's dropout masks; None disables dropout."""
    memory: MatrixPool | None = None
    """Forward: pool of the matrices that the backward pass needs; None if there is no backward pass."""
    overwrite: bool = False
    """Forward: whether messages may be overwritten; only `backward` reads them later, if it needs them."""
    accumulate: bool = False
    """Backward: whether to add to the output instead of overwriting it."""


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _transpose_rows(indptr, columns, chosen, starts, rows):
    """Transpose the chosen rows of a CSR matrix; edges of a column keep the order of the rows."""
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
