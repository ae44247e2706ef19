"""Cost of the collectives of a step in the alpha-beta model.

Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.communication.network import Network


def busiest_bytes(sent: NDArray[np.float64]) -> float:
    """Return the bytes in the busiest direction of any link.

    Parameters
    ----------
    sent
        [N, N] bytes from each rank to each other; the diagonal is ignored.
    """
    off_diagonal = sent * (1 - np.eye(len(sent)))
    return float(max(off_diagonal.sum(axis=0).max(), off_diagonal.sum(axis=1).max()))


def all_to_all_v_s(sent: NDArray[np.float64], network: Network) -> float:
    """Return the seconds of an all-to-all with blocks of different sizes.

    Each rank sends N - 1 messages; the busiest link determines the time.

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
    """Return the bytes that each rank sends in a ring all-reduce: 2 (N - 1) / N of the array."""
    return 2 * (ranks - 1) / ranks * num_bytes


def all_reduce_s(num_bytes: float, ranks: int, network: Network) -> float:
    """Return the seconds of a ring all-reduce: 2 (N - 1) messages of 1/N of the array."""
    return network.seconds(all_reduce_bytes(num_bytes, ranks), 2 * (ranks - 1)) if ranks > 1 else 0.0
