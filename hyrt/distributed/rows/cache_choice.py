"""Which rows of other ranks a rank keeps: those that it is expected to need in most steps."""

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
    """What a rank is expected to be sent by others, under a strategy.

    Parameters
    ----------
    topology
        The edges.
    targets
        [n] the training vertices.
    homes
        [V] the rank that has each vertex's rows.
    rank, num_ranks
        The rank, and how many there are.
    strategy
        Places the targets; it is asked once, for all of them, and what it does to even out single steps does
        not count.
    batch_size
        Targets of a step, over all ranks.
    fanouts
        Neighbours of each vertex per layer, the targets' layer first; -1 takes all.
    beside
        Ranks that send it nothing, because it reads their rows where they lie.
    """
    of_targets = homes[targets]
    placed = strategy.place(Roots(of_targets, num_ranks)).ranks
    of_homes = np.bincount(of_targets, minlength=num_ranks)
    here = np.bincount(of_targets[placed == rank], minlength=num_ranks) / np.maximum(of_homes, 1)
    weights = np.zeros(topology.num_vertices)
    weights[targets] = here[of_targets] / len(targets)
    steps, rest = divmod(len(targets), batch_size)
    batches = [batch_size] * steps + [rest] * bool(rest)
    reads = expected_reads(topology, weights, batches, fanouts)
    reads[np.isin(homes, [rank, *beside])] = 0
    return RowRanking.of(reads, topology.indices.dtype)
