"""Which rows of other ranks a rank keeps: those that it is expected to need in most steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.rows.expected_visits import expected_reads
from hyrt.distributed.strategies.strategy import Roots, Strategy
from hyrt.graph.topology import Topology
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True, eq=False)
class RemoteReads:
    """The vertices of other ranks that a rank is expected to read, those of most steps first."""

    vertices: NDArray[Any]
    """[n] the vertices that it may read at all."""
    steps: NDArray[np.float64]
    """[n] in how many steps of an epoch it is expected to, none less than the next."""

    __repr__ = one_line

    def of_first(self, count: int) -> float:
        """How many of the rows that it is expected to read in an epoch are those of the first vertices."""
        return float(self.steps[:count].sum())


def remote_reads(
    topology: Topology,
    targets: NDArray[Any],
    homes: NDArray[Any],
    rank: int,
    num_ranks: int,
    strategy: Strategy,
    batch_size: int,
    fanouts: Sequence[int],
) -> RemoteReads:
    """What a rank is expected to read of others, under a strategy.

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
    reads[homes == rank] = 0
    best = np.argsort(-reads, kind="stable")[: np.count_nonzero(reads)]
    return RemoteReads(best.astype(topology.indices.dtype), reads[best])
