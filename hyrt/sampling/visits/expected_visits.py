"""Expected number of reads of each feature row, from the probabilities of neighbour sampling."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.topology import Topology
from hyrt.machine.kernels.kept_kernels import nb


def visited(topology: Topology, drawn: NDArray[np.float64], fanouts: Sequence[int]) -> NDArray[np.float64]:
    """Compute the probability that a mini-batch reads each vertex's row.

    Parameters
    ----------
    topology
        The edges.
    drawn
        [V] the probability that each vertex is a target of the mini-batch.
    fanouts
        Neighbours of each vertex per layer, the targets' layer first; -1 takes all.

    Returns
    -------
    [V] float64 from 0 to 1.
    """
    degrees = np.maximum(topology.in_degrees, 1)
    reached = drawn
    # [V] the probability that a vertex has been reached and has drawn a given one of its neighbours.
    drawing = np.zeros(len(drawn))
    for fanout in fanouts:
        part = np.minimum(1.0, fanout / degrees) if fanout >= 0 else 1.0
        drawing += part * (reached - drawing)
        # The logarithm of 0 would make others of it not a number.
        missed = np.zeros(len(drawn))
        _add_to_neighbours(
            topology.indptr, topology.indices, np.log1p(-np.minimum(drawing, 1 - 1e-15)), missed
        )
        reached = 1 - (1 - drawn) * np.exp(missed)
    return reached


def expected_reads(
    topology: Topology,
    target_weights: NDArray[np.float64],
    batches: Sequence[int],
    fanouts: Sequence[int],
) -> NDArray[np.float64]:
    """Compute the number of steps per epoch in which a rank is expected to read each row.

    Parameters
    ----------
    topology
        The edges.
    target_weights
        [V] the probability that this rank trains the vertex if a step has one target.
    batches
        The targets of each step, over all ranks.
    fanouts
        Neighbours of each vertex per layer, the targets' layer first; -1 takes all.

    Returns
    -------
    [V] float64, from 0 to the number of steps.
    """
    total = np.zeros(topology.num_vertices)
    for size, steps in zip(*np.unique(batches, return_counts=True), strict=True):
        total += steps * visited(topology, np.minimum(size * target_weights, 1.0), fanouts)
    return total


@nb.njit(nogil=True, cache=True, error_model="numpy")
def _add_to_neighbours(indptr, indices, values, sums):
    """Add values[v] to sums[u], for every edge from u into v."""
    for v in range(len(indptr) - 1):
        if values[v] != 0:
            for e in range(indptr[v], indptr[v + 1]):
                sums[indices[e]] += values[v]
