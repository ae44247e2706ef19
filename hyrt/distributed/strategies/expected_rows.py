"""Expected numbers of remote rows, for load balancing and row caches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.strategy import Seeds, Strategy
from hyrt.graph.topology import Topology
from hyrt.sampling.hotness import HotnessRanking, expected_accesses


def expected_remote_rows(
    topology: Topology, seeds: NDArray[Any], owners: NDArray[Any], num_ranks: int, fanout: int
) -> NDArray[np.float64]:
    """Compute how many rows of a seed and its sampled neighbours each rank would have to fetch, on average.

    Only the first hop is considered, at the cost of one pass over the seeds' edges. Further hops correlate
    with it, because the part of a vertex contains most of its neighbours. `seeds` [n] are distinct vertices,
    `owners` [V] the owner ranks, and `fanout` is -1 for all neighbours. Return float64 [n, N].
    """
    starts, degrees = topology.indptr[seeds], topology.in_degrees[seeds].astype(np.int64)
    rows = np.repeat(np.arange(len(seeds)), degrees)
    first = np.repeat(np.cumsum(degrees) - degrees, degrees)
    edges = np.arange(len(rows)) - first + np.repeat(starts, degrees)
    source_owners = owners[topology.indices[edges]].astype(np.int64)
    neighbors_per_owner = np.bincount(rows * num_ranks + source_owners, minlength=len(seeds) * num_ranks)
    num_sampled = degrees if fanout < 0 else np.minimum(degrees, fanout)
    local = (
        neighbors_per_owner.reshape(len(seeds), num_ranks) * (num_sampled / np.maximum(degrees, 1))[:, None]
    )
    local[np.arange(len(seeds)), owners[seeds].astype(np.intp)] += 1
    remote: NDArray[np.float64] = (num_sampled + 1)[:, None] - local
    return remote


def remote_reads(
    topology: Topology,
    targets: NDArray[Any],
    owners: NDArray[Any],
    rank: int,
    num_ranks: int,
    strategy: Strategy,
    batch_size: int,
    fanouts: Sequence[int],
    same_host_ranks: Collection[int] = (),
) -> HotnessRanking:
    """Compute how often a rank is expected to fetch each remote row under a strategy.

    `targets` [n] are the training vertices, and `owners` [V] the owner ranks. `strategy` is called once for
    all targets; load balancing of single steps is ignored. `batch_size` is the number of targets per step
    over all ranks. `fanouts` has the targets' layer first; -1 takes all. Rows of `same_host_ranks` are read
    through shared memory and are never fetched.
    """
    target_owners = owners[targets]
    placed = strategy.place(Seeds(target_owners, num_ranks)).ranks
    targets_per_owner = np.bincount(target_owners, minlength=num_ranks)
    trained_share = np.bincount(target_owners[placed == rank], minlength=num_ranks) / np.maximum(
        targets_per_owner, 1
    )
    weights = np.zeros(topology.num_vertices)
    weights[targets] = trained_share[target_owners] / len(targets)
    steps, remainder = divmod(len(targets), batch_size)
    batches = [batch_size] * steps + [remainder] * bool(remainder)
    reads = expected_accesses(topology, weights, batches, fanouts)
    reads[np.isin(owners, [rank, *same_host_ranks])] = 0
    return HotnessRanking.from_accesses(reads, topology.indices.dtype)
