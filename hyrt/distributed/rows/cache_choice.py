"""Choice of cached remote rows: the rows that most steps are expected to need."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.strategy import Roots, Strategy
from hyrt.graph.topology import Topology
from hyrt.sampling.visits.expected_visits import expected_reads
from hyrt.sampling.visits.row_ranking import RowRanking


def remote_reads(
    topology: Topology,
    targets: NDArray[Any],
    homes: NDArray[Any],
    rank: int,
    num_ranks: int,
    strategy: Strategy,
    batch_size: int,
    fanouts: Sequence[int],
    beside: Collection[int] = (),
) -> RowRanking:
    """Compute how often a rank is expected to fetch each remote row under a strategy.

    Parameters
    ----------
    topology
        The edges.
    targets
        [n] training vertices.
    homes
        [V] owner rank of each vertex.
    rank, num_ranks
        The rank, and the number of ranks.
    strategy
        Places the targets. It is called once for all targets; load balancing of single steps is ignored.
    batch_size
        Targets per step, over all ranks.
    fanouts
        Neighbours per vertex for each layer, the targets' layer first; -1 takes all.
    beside
        Ranks on the same host; their rows are read through shared memory and are never fetched.
    """
    target_owners = homes[targets]
    placed = strategy.place(Roots(target_owners, num_ranks)).ranks
    targets_per_owner = np.bincount(target_owners, minlength=num_ranks)
    trained_share = np.bincount(target_owners[placed == rank], minlength=num_ranks) / np.maximum(
        targets_per_owner, 1
    )
    weights = np.zeros(topology.num_vertices)
    weights[targets] = trained_share[target_owners] / len(targets)
    steps, remainder = divmod(len(targets), batch_size)
    batches = [batch_size] * steps + [remainder] * bool(remainder)
    reads = expected_reads(topology, weights, batches, fanouts)
    reads[np.isin(homes, [rank, *beside])] = 0
    return RowRanking.of(reads, topology.indices.dtype)
