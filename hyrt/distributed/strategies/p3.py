"""P3 strategy, which computes the first layer by feature columns and sends hidden vectors instead of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.strategy import (
    REFUSED_WITHOUT_ROWS,
    InputBlock,
    Placement,
    Ranks,
    Seeds,
    Traffic,
    place_without_migration,
    split_in_order,
)
from hyrt.runtime.rng import SHUFFLE, stream_key


@dataclass(frozen=True, slots=True)
class P3Strategy:
    """Strategy with a feature-parallel first layer: each rank holds some columns of all rows.

    Gandhi and Iyer, "P3: distributed deep graph learning at scale", OSDI 2021: the partial results of a first
    layer are pushed to the rank of the mini-batch and summed there; in the backward pass this rank sends
    their gradient to all ranks. The first layer must be a sum over columns before its activation. Later
    layers are trained as in `model-centric`.

    Parameters
    ----------
    multiplies_sources
        Whether the first layer multiplies every source's row (attention), instead of a destination's
        aggregate.
    """

    multiplies_sources: bool = False
    name = "p3"
    description = "results of the first layer, which every rank computes from its columns of the features"
    refuses = REFUSED_WITHOUT_ROWS
    draws_locally = False

    def place(self, seeds: Seeds) -> Placement:
        return place_without_migration(split_in_order(len(seeds.owners), seeds.num_ranks), seeds.num_ranks)

    def traffic(self, placement: Placement, owners: NDArray[Any], sampled: InputBlock) -> Traffic:
        """Count the first layer's partial results from all other ranks, and the returned gradients."""
        num = placement.num_ranks
        products = np.zeros(num, np.int64)
        for rank in range(num):
            positions = placement.positions_of_rank(rank)
            if len(positions):
                block = sampled(positions)
                products[rank] = block.num_src if self.multiplies_sources else block.num_dst
        others = 1 - np.eye(num, dtype=np.int64)
        forward = others * products[None, :]
        return replace(Traffic.zero(num), hidden=forward + forward.T)


def column_owners(num_columns: int, num_ranks: int, seed: int) -> Ranks:
    """Assign F feature columns to ranks at random, int32 [F], with counts that differ by at most one.

    `seed` is the seed of the partition.
    """
    generator = np.random.Generator(np.random.Philox(key=int(stream_key(seed, SHUFFLE, 0, 0))))
    owners: Ranks = generator.permutation(np.arange(num_columns) % num_ranks).astype(np.int32)
    return owners
