"""The weights and features of a block's edges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.topology import Topology
from hyrt.machine.buffer_pool import TakenArrays
from hyrt.machine.workers import Workers
from hyrt.quantities import one_line
from hyrt.sampling.block import Ids
from hyrt.sampling.kernels import find_edges

_GRAIN = 1 << 14
_ROWS = 1024


@dataclass(frozen=True, slots=True, eq=False)
class EdgeValues:
    """Weights and features of some edges."""

    weights: NDArray[np.float32] | None = None
    """[E] float32; None if edges have none."""
    features: NDArray[np.float32] | None = None
    """[E, d] float32; None if edges have none."""

    __repr__ = one_line

    def of(self, edges: NDArray[Any]) -> EdgeValues:
        """Return the values of some of the edges, by position."""
        return EdgeValues(*(None if each is None else each[edges] for each in (self.weights, self.features)))


def edge_values(
    topology: Topology,
    vertices: Ids,
    offsets: Ids,
    neighbors: Ids,
    workers: Workers,
    arrays: TakenArrays,
    edges: NDArray[np.int64] | None = None,
) -> EdgeValues:
    """Gather the weights and features of edges.

    Parameters
    ----------
    topology
        The edges of the graph.
    vertices, offsets, neighbors
        [n], [n + 1] and [E] destinations, where the edges of each start, and the sources of the edges.
    workers
        The team of threads that gathers.
    arrays
        Where the memory of the result is taken from.
    edges
        [E] the numbers of the edges in the graph; by default they are looked up by their ends.

    Raises
    ------
    DataError
        If an edge is looked up that is not the only one between its ends, or whose row is not sorted.
    """
    if not topology.has_edge_values:
        return EdgeValues()
    if edges is None:
        edges = _edges_between(topology, vertices, offsets, neighbors, workers, arrays)
    gathered: list[NDArray[np.float32] | None] = []
    for values in (topology.edge_weights, topology.edge_features):
        if values is None:
            gathered.append(None)
            continue
        out = arrays.take((len(edges), *values.shape[1:]), np.float32)
        workers.run(_gather(values, edges, out), len(edges), _GRAIN)
        gathered.append(out)
    return EdgeValues(*gathered)


def _edges_between(
    topology: Topology, vertices: Ids, offsets: Ids, neighbors: Ids, workers: Workers, arrays: TakenArrays
) -> NDArray[np.int64]:
    edges = arrays.take(len(neighbors), np.int64)
    graph = (topology.indptr, topology.indices, vertices, offsets, neighbors)

    def find(start: int, stop: int) -> None:
        missing = find_edges(*graph, start, stop, edges)
        if missing >= 0:
            row = int(np.searchsorted(offsets, missing, side="right")) - 1
            raise DataError(
                f"the edge from vertex {neighbors[missing]} into vertex {vertices[row]} cannot be "
                "identified by its ends, so its weight and its features are unknown: rows must be sorted, "
                "with at most one edge from one vertex to another: hyrt data convert --sort --unique"
            )

    workers.run(find, len(vertices), _ROWS)
    return edges


def _gather(
    values: NDArray[np.float32], edges: NDArray[np.int64], out: NDArray[np.float32]
) -> Callable[[int, int], None]:
    def gather(start: int, stop: int) -> None:
        np.take(values, edges[start:stop], axis=0, out=out[start:stop], mode="clip")

    return gather
