"""What the collectives of a step take, by the alpha-beta model.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.communication.network import Network


def busiest_bytes(sent: NDArray[np.float64]) -> float:
    """The bytes of the direction of a link that carries most.

    Parameters
    ----------
    sent
        [N, N] bytes from each rank to each other; the diagonal does not travel.
    """
    travels = sent * (1 - np.eye(len(sent)))
    return float(max(travels.sum(axis=0).max(), travels.sum(axis=1).max()))


def all_to_all_v_s(sent: NDArray[np.float64], network: Network) -> float:
    """Seconds of an all-to-all of blocks of different sizes: N - 1 messages, at the pace of the busiest link.

    Parameters
    ----------
    sent
        [N, N] bytes from each rank to each other.
    network
        The network.
    """
    ranks = len(sent)
    return network.uneven_s(busiest_bytes(sent), ranks - 1) if ranks > 1 else 0.0


def all_reduce_bytes(num_bytes: float, ranks: int) -> float:
    """What each rank sends to add up an array over all: 2 (N - 1) / N of it (a ring)."""
    return 2 * (ranks - 1) / ranks * num_bytes


def all_reduce_s(num_bytes: float, ranks: int, network: Network) -> float:
    """Seconds of that: 2 (N - 1) messages of an N-th."""
    return network.seconds(all_reduce_bytes(num_bytes, ranks), 2 * (ranks - 1)) if ranks > 1 else 0.0
