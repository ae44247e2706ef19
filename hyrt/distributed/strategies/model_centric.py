"""Model-centric strategy, which sends features to the models, as DistDGL does; models do not migrate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hyrt.distributed.strategies.strategy import (
    InputBlock,
    Placement,
    Seeds,
    Traffic,
    place_without_migration,
    split_in_order,
    traffic_with_pregather,
)


@dataclass(frozen=True, slots=True)
class ModelCentricStrategy:
    """Strategy that trains an equal part of the seeds on every rank, in sampling order.

    Zheng et al., "DistDGL: distributed graph neural network training for billion-scale graphs", IA3 2020;
    HopGNN section 2.
    """

    name = "model-centric"
    description = "features, to the rank of a randomly drawn root"
    refuses = ("rank_shares",)
    draws_locally = False

    def place(self, seeds: Seeds) -> Placement:
        return place_without_migration(split_in_order(len(seeds.owners), seeds.num_ranks), seeds.num_ranks)

    def traffic(self, placement: Placement, owners: NDArray[Any], sampled: InputBlock) -> Traffic:
        return traffic_with_pregather(placement, owners, sampled)
