"""Traffic of remote neighbor sampling, if edges are partitioned among ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.sampling.minibatch import MiniBatch

# Bytes of a vertex's degree and sample size in a response, and of the number of vertices in a request.
_ANSWER_BYTES, _COUNT_BYTES = 8, 8


def asked_bytes(batch: MiniBatch, homes: NDArray[Any], rank: int, num_ranks: int) -> NDArray[np.float64]:
    """Return the bytes exchanged between ranks while one of them samples, by the protocol of `AskedHops`.

    Parameters
    ----------
    batch
        Mini-batch of all units that the rank trains in a step.
    homes
        [V] rank that has the edges into each vertex.
    rank, num_ranks
        The sampling rank, and the number of ranks.

    Returns
    -------
    [N, N] float64, bytes from each rank to each other.
    """
    sent = np.zeros((num_ranks, num_ranks))
    sources = batch.blocks[0].sources
    assert sources is not None
    for block in batch.blocks:
        # Destinations of a block are a prefix of its sources, which are the destinations of the block below.
        requested = homes[sources[: block.num_dst]]
        values = (block.edge_types, block.edge_weights, block.edge_features)
        edge_bytes = sources.itemsize + sum(
            value.itemsize * (value.shape[1] if value.ndim == 2 else 1)
            for value in values
            if value is not None
        )
        sampled_edges = np.bincount(requested, np.diff(block.indptr), num_ranks)
        vertices = np.bincount(requested, minlength=num_ranks)
        sent[rank] += vertices * sources.itemsize + _COUNT_BYTES
        sent[:, rank] += vertices * _ANSWER_BYTES + sampled_edges * edge_bytes
    sent[rank, rank] = 0
    return sent
