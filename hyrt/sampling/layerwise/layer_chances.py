"""Inclusion probabilities of layer-wise sampling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.topology import Topology
from hyrt.sampling.layerwise.layerwise_kernels import add_importance


def chances_for(importance: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Compute probabilities in proportion to importance, at most 1, that sum to `size`.

    Parameters
    ----------
    importance
        [n] float64, all above 0.
    size
        Expected number of sampled items; all probabilities are 1 if there are no more items.

    Returns
    -------
    [n] float64.
    """
    num = len(importance)
    if num <= size:
        return np.ones(num)
    order = np.sort(importance)[::-1]
    # With the j most important certain, the others share size - j: as few as leave no other above 1.
    rest = np.cumsum(order[::-1])[::-1]
    certain = np.arange(size)
    fits = order[:size] * (size - certain) <= rest[:size]
    j = int(np.argmax(fits)) if fits.any() else size - 1
    chances: NDArray[np.float64] = np.minimum(importance * ((size - j) / rest[j]), 1.0)
    return chances


def chances_of_columns(topology: Topology, size: int) -> NDArray[np.float64]:
    """Compute [V] float64 probabilities in proportion to the squared column norms of the adjacency matrix.

    Parameters
    ----------
    topology
        The edges.
    size
        How many are to be expected.
    """
    num = topology.num_vertices
    sums = np.zeros(num)
    room = np.empty(num, np.int64)
    everyone = np.arange(num)
    graph = (topology.indptr, topology.indices, topology.in_degrees)
    met = room[: add_importance(*graph, everyone, sums, room)]
    sums[met] = chances_for(sums[met], size)
    return sums
