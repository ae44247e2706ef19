"""Every rank draws its roots from its own part: fewer rows travel, and something else is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.gathering import gathered_once
from hyrt.distributed.strategies.placement import Placement, stay
from hyrt.distributed.strategies.strategy import InputBlock, Roots
from hyrt.distributed.strategies.traffic import Traffic
from hyrt.machine.generator import SHUFFLE, stream_key
from hyrt.sampling.block import Ids


@dataclass(frozen=True, slots=True)
class Local:
    """Roots are drawn and trained where they live; the batches of a run are others than on one machine.

    What HopGNN calls the locality-optimized method (sections 5.1 and 7.9), which may cost accuracy. Remote
    neighbours are still fetched: nothing is left out of a mini-batch.
    """

    name = "local"
    description = "nothing but rows: each rank draws its roots from its own part, which changes the batches"
    draws_locally = True

    def place(self, roots: Roots) -> Placement:
        """Units at their homes."""
        return stay(roots.homes, roots.num_ranks)

    def traffic(self, placement: Placement, homes: NDArray[Any], sampled: InputBlock) -> Traffic:
        """The remote rows of every rank's mini-batch."""
        return gathered_once(placement, homes, sampled)


class LocalOrder:
    """Batches in which every part has its share; each part's order is a shuffle of its own.

    Equal to `hyrt.sampling.order.TargetOrder` in its form: every target once an epoch, the last batch short.

    Parameters
    ----------
    targets
        [n] the training vertices of all parts.
    homes
        [V] the part of each vertex.
    num_ranks
        The number of parts.
    batch_size
        Targets of a step, over all ranks.
    seed
        The seed of the run.
    """

    def __init__(self, targets: Ids, homes: NDArray[Any], num_ranks: int, batch_size: int, seed: int) -> None:
        of_targets = homes[targets]
        self._parts = [targets[of_targets == rank] for rank in range(num_ranks)]
        # The i-th of a part's n has its place at (i + 1/2) / n of the epoch.
        places = [(np.arange(len(part)) + 0.5) / max(len(part), 1) for part in self._parts]
        self._merged = np.argsort(np.concatenate(places), kind="stable")
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._order: Ids = targets

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self._merged) // self._batch_size)

    def batch(self, step: int) -> Ids:
        """The targets of one step of the run."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = np.concatenate(
                [self._shuffled(part, epoch, rank) for rank, part in enumerate(self._parts)]
            )[self._merged]
            self._epoch = epoch
        start = position * self._batch_size
        return self._order[start : start + self._batch_size]

    def _shuffled(self, part: Ids, epoch: int, rank: int) -> Ids:
        # 0 is the stream of the order over all targets.
        key = int(stream_key(self._seed, SHUFFLE, epoch, 1 + rank))
        return np.random.Generator(np.random.Philox(key=key)).permutation(part)
