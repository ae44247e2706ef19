"""How often each vertex's row is expected to be needed, from the probabilities of neighbour sampling."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence

import numba as nb
import numpy as np
from numpy.typing import NDArray

from hyrt.graph.topology import Topology


def visited(topology: Topology, drawn: NDArray[np.float64], fanouts: Sequence[int]) -> NDArray[np.float64]:
    """The probability that a mini-batch reads each vertex's row.

    A vertex with d neighbours draws min(d, f) of them, each with probability min(1, f / d), and a vertex is
    reached unless none of those around it draws it. Each hop is drawn from all vertices that were reached
    before. The draws are taken to be independent of each other. They are, but for two things: targets are
    drawn without replacement, and two ways to a vertex may begin at the same one.

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
    reached = drawn
    for fanout in fanouts:
        logs = np.zeros(len(reached))
        _add_logs(topology.indptr, topology.indices, reached, fanout, logs)
        reached = 1 - (1 - reached) * np.exp(logs)
    return reached


def expected_reads(
    topology: Topology,
    target_weights: NDArray[np.float64],
    batches: Sequence[int],
    fanouts: Sequence[int],
) -> NDArray[np.float64]:
    """In how many steps of an epoch a rank is expected to read each vertex's row.

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
def _add_logs(indptr, indices, reached, fanout, logs):
    """logs[u] += log(1 - P(v is reached and draws u)), for every edge from u into v."""
    for v in range(len(indptr) - 1):
        first, stop = indptr[v], indptr[v + 1]
        if reached[v] == 0 or first == stop:
            continue
        degree = stop - first
        part = 1.0 if fanout < 0 or degree < fanout else fanout / degree
        # The logarithm of 0 would make others of it not a number.
        log = np.log1p(-min(reached[v] * part, 1 - 1e-15))
        for e in range(first, stop):
            logs[indices[e]] += log
