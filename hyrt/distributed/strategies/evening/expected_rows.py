"""Expected number of remote rows of a unit at each rank, from its seed's neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.topology import Topology


def expected_remote_rows(
    topology: Topology, roots: NDArray[Any], homes: NDArray[Any], num_ranks: int, fanout: int
) -> NDArray[np.float64]:
    """Compute how many rows of a seed and its sampled neighbours each rank would have to fetch.

    Only the first hop is considered, at the cost of one pass over the seeds' edges. Further hops correlate
    with it,
    because the part of a vertex contains most of its neighbours.

    Parameters
    ----------
    topology
        All edges.
    roots
        [n] distinct vertices.
    homes
        [V] owner rank of each vertex's features.
    num_ranks
        Number of ranks, N.
    fanout
        Number of neighbours sampled per seed; -1 takes all.

    Returns
    -------
    [n, N] float64, expected numbers over the random neighbours.
    """
    starts, degrees = topology.indptr[roots], topology.in_degrees[roots].astype(np.int64)
    rows = np.repeat(np.arange(len(roots)), degrees)
    first = np.repeat(np.cumsum(degrees) - degrees, degrees)
    edges = np.arange(len(rows)) - first + np.repeat(starts, degrees)
    source_owners = homes[topology.indices[edges]].astype(np.int64)
    neighbors_per_owner = np.bincount(rows * num_ranks + source_owners, minlength=len(roots) * num_ranks)
    num_sampled = degrees if fanout < 0 else np.minimum(degrees, fanout)
    local = (
        neighbors_per_owner.reshape(len(roots), num_ranks) * (num_sampled / np.maximum(degrees, 1))[:, None]
    )
    local[np.arange(len(roots)), homes[roots].astype(np.intp)] += 1
    remote: NDArray[np.float64] = (num_sampled + 1)[:, None] - local
    return remote
