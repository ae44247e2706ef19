"""The first layer by columns of the features, then hidden vectors: no input row travels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.placement import Placement, Ranks, drawn_pieces, stay
from hyrt.distributed.strategies.strategy import InputBlock, Roots
from hyrt.distributed.strategies.traffic import Traffic
from hyrt.machine.generator import SHUFFLE, stream_key


@dataclass(frozen=True, slots=True)
class P3:
    """Every rank has some columns of all rows, and computes its part of the first layer for every rank.

    Gandhi and Iyer, "P3: distributed deep graph learning at scale", OSDI 2021: the parts of a first layer's
    results are pushed to the rank of the mini-batch and added there; in the backward pass it sends their
    gradient to all. The first layer must be a sum over columns before its activation. Later layers are
    trained as by `model-centric`.

    Parameters
    ----------
    of_sources
        Whether the first layer multiplies the row of every source (attention), instead of what a destination
        has aggregated.
    """

    of_sources: bool = False
    name = "p3"
    description = "results of the first layer, which every rank computes from its columns of the features"
    draws_locally = False

    def place(self, roots: Roots) -> Placement:
        """The order drawn, cut into one piece a rank."""
        return stay(drawn_pieces(len(roots.homes), roots.num_ranks), roots.num_ranks)

    def traffic(self, placement: Placement, homes: NDArray[Any], sampled: InputBlock) -> Traffic:
        """Products of the first layer: from every other rank forward, and their gradients back to it."""
        num = placement.num_ranks
        products = np.zeros(num, np.int64)
        for rank in range(num):
            mine = placement.of_rank(rank)
            if len(mine):
                block = sampled(mine)
                products[rank] = block.num_src if self.of_sources else block.num_dst
        others = 1 - np.eye(num, dtype=np.int64)
        forward = others * products[None, :]
        return replace(Traffic.none(num), hidden=forward + forward.T)


def column_owners(num_columns: int, num_ranks: int, seed: int) -> Ranks:
    """[F] int32, the rank of each feature column: at random, with counts that differ by at most one.

    Parameters
    ----------
    num_columns
        The width of a feature row, F.
    num_ranks
        The number of ranks.
    seed
        The seed of the partition.
    """
    generator = np.random.Generator(np.random.Philox(key=int(stream_key(seed, SHUFFLE, 0, 0))))
    owners: Ranks = generator.permutation(np.arange(num_columns) % num_ranks).astype(np.int32)
    return owners
