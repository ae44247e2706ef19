"""Model-centric strategy: features are sent to the models, which do not migrate (as in DistDGL)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from hyrt.distributed.strategies.gathering import gathered_once
from hyrt.distributed.strategies.placement import Placement, drawn_pieces, stay
from hyrt.distributed.strategies.strategy import InputBlock, Roots
from hyrt.distributed.strategies.traffic import Traffic


@dataclass(frozen=True, slots=True)
class ModelCentric:
    """Trains an equal part of the seeds on every rank, in sampling order, regardless of their owners.

    Zheng et al., "DistDGL: distributed graph neural network training for billion-scale graphs", IA3 2020;
    HopGNN section 2.
    """

    name = "model-centric"
    description = "features, to the rank of a root that is drawn at random"
    draws_locally = False

    def place(self, roots: Roots) -> Placement:
        """Split the seeds in sampling order into one part per rank."""
        return stay(drawn_pieces(len(roots.homes), roots.num_ranks), roots.num_ranks)

    def traffic(self, placement: Placement, homes: NDArray[Any], sampled: InputBlock) -> Traffic:
        """Count the remote rows of every rank's mini-batch."""
        return gathered_once(placement, homes, sampled)
