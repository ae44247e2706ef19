"""Model-centric strategy: features are sent to the models, which do not migrate (as in DistDGL)."""

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
    """Trains an equal part of the seeds on every rank, in sampling order, regardless of their owners.

    Zheng et al., "DistDGL: distributed graph neural network training for billion-scale graphs", IA3 2020;
    HopGNN section 2.
    """

    name = "model-centric"
    description = "features, to the rank of a root that is drawn at random"
    draws_locally = False

    def place(self, seeds: Seeds) -> Placement:
        """Split the seeds in sampling order into one part per rank."""
        return place_without_migration(split_in_order(len(seeds.owners), seeds.num_ranks), seeds.num_ranks)

    def traffic(self, placement: Placement, owners: NDArray[Any], sampled: InputBlock) -> Traffic:
        """Count the remote rows of every rank's mini-batch."""
        return traffic_with_pregather(placement, owners, sampled)
