"""How many remote rows a unit is expected to need at each rank, from its root's neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.topology import Topology


def expected_remote_rows(
    topology: Topology, roots: NDArray[Any], homes: NDArray[Any], num_ranks: int, fanout: int
) -> NDArray[np.float64]:
    """Rows of a root and of its sampled neighbours that each rank would have to fetch.

    Only the first hop is looked at: it costs the edges of the roots, and further hops follow it, because a
    part that has a vertex has most of its neighbours.

    Parameters
    ----------
    topology
        The edges, known to every rank.
    roots
        [n] distinct vertices.
    homes
        [V] the rank that has each vertex's features.
    num_ranks
        The number of ranks, N.
    fanout
        Neighbours that are sampled of each root; -1 takes all.

    Returns
    -------
    [n, N] float64, expectations over the draw of the neighbours.
    """
    starts, degrees = topology.indptr[roots], topology.in_degrees[roots].astype(np.int64)
    rows = np.repeat(np.arange(len(roots)), degrees)
    first = np.repeat(np.cumsum(degrees) - degrees, degrees)
    edges = np.arange(len(rows)) - first + np.repeat(starts, degrees)
    of_edges = homes[topology.indices[edges]].astype(np.int64)
    beside = np.bincount(rows * num_ranks + of_edges, minlength=len(roots) * num_ranks)
    drawn = degrees if fanout < 0 else np.minimum(degrees, fanout)
    local = beside.reshape(len(roots), num_ranks) * (drawn / np.maximum(degrees, 1))[:, None]
    local[np.arange(len(roots)), homes[roots].astype(np.intp)] += 1
    remote: NDArray[np.float64] = (drawn + 1)[:, None] - local
    return remote
