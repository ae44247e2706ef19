"""Local strategy, in which every rank draws seeds from its part: less traffic, but different batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.strategy import (
    InputBlock,
    Placement,
    Seeds,
    Traffic,
    place_without_migration,
    traffic_with_pregather,
)
from hyrt.runtime.rng import SHUFFLE, stream_key
from hyrt.sampling.block import Ids


@dataclass(frozen=True, slots=True)
class LocalStrategy:
    """Strategy that draws and trains seeds at their owners, so batches differ from those on one machine.

    This is the locality-optimized method of HopGNN (sections 5.1 and 7.9), which may reduce accuracy. Remote
    neighbours are still fetched, so neighbourhoods are complete.
    """

    name = "local"
    description = "only rows: each rank draws its roots from its own part, which changes the batches"
    refuses = ("links", "subgraph_units", "step_sampling", "rank_shares")
    draws_locally = True

    def place(self, seeds: Seeds) -> Placement:
        return place_without_migration(seeds.owners, seeds.num_ranks)

    def traffic(self, placement: Placement, owners: NDArray[Any], sampled: InputBlock) -> Traffic:
        return traffic_with_pregather(placement, owners, sampled)


class LocalOrder:
    """Batch order in which each batch has a proportional share of every part; parts are shuffled separately.

    Every target occurs once per epoch, and the last batch may be shorter, as in
    `hyrt.sampling.block_builder.TargetShuffler`. `targets` [n] are the training vertices of all parts,
    `owners` [V] the part of each vertex, and `batch_size` is the number of targets per step over all ranks.
    """

    def __init__(
        self, targets: Ids, owners: NDArray[Any], num_ranks: int, batch_size: int, seed: int
    ) -> None:
        target_owners = owners[targets]
        self._parts = [targets[target_owners == rank] for rank in range(num_ranks)]
        # Interleave the parts: the i-th of a part's n targets is at position (i + 1/2) / n of the epoch.
        positions = [(np.arange(len(part)) + 0.5) / max(len(part), 1) for part in self._parts]
        self._interleaved = np.argsort(np.concatenate(positions), kind="stable")
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._order: Ids = targets

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self._interleaved) // self._batch_size)

    def batch(self, step: int) -> Ids:
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = np.concatenate(
                [self._shuffle(part, epoch, rank) for rank, part in enumerate(self._parts)]
            )[self._interleaved]
            self._epoch = epoch
        start = position * self._batch_size
        return self._order[start : start + self._batch_size]

    def _shuffle(self, part: Ids, epoch: int, rank: int) -> Ids:
        # Stream 0 is reserved for the order of all targets.
        key = int(stream_key(self._seed, SHUFFLE, epoch, 1 + rank))
        return np.random.Generator(np.random.Philox(key=key)).permutation(part)
