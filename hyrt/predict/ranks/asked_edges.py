"""What ranks send for neighbours where the edges are split among them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.sampling.minibatch import MiniBatch

# A vertex's degree and how many neighbours were drawn; and how many vertices a rank asks another for.
_ANSWER_BYTES, _COUNT_BYTES = 8, 8


def asked_bytes(batch: MiniBatch, homes: NDArray[Any], rank: int, num_ranks: int) -> NDArray[np.float64]:
    """The bytes that travel between ranks while one of them samples, as `AskedHops` asks.

    Parameters
    ----------
    batch
        The mini-batch of all units that the rank trains in a step.
    homes
        [V] the rank that has the edges into each vertex.
    rank, num_ranks
        The rank that samples, and how many there are.

    Returns
    -------
    [N, N] float64, from each rank to each other.
    """
    sent = np.zeros((num_ranks, num_ranks))
    sources = batch.blocks[0].sources
    assert sources is not None
    for block in batch.blocks:
        # Destinations of every block are the first of its sources, and those are the destinations below.
        asked = homes[sources[: block.num_dst]]
        values = (block.edge_types, block.edge_weights, block.edge_features)
        edge_bytes = sources.itemsize + sum(
            each.itemsize * (each.shape[1] if each.ndim == 2 else 1) for each in values if each is not None
        )
        drawn = np.bincount(asked, np.diff(block.indptr), num_ranks)
        vertices = np.bincount(asked, minlength=num_ranks)
        sent[rank] += vertices * sources.itemsize + _COUNT_BYTES
        sent[:, rank] += vertices * _ANSWER_BYTES + drawn * edge_bytes
    sent[rank, rank] = 0
    return sent
