"""HopGNN strategy, in which models migrate to the features over time steps of micrographs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.strategy import (
    Counts,
    InputBlock,
    Placement,
    Seeds,
    Traffic,
    split_in_order,
    traffic_with_pregather,
    traffic_without_pregather,
)
from hyrt.distributed.strategies.time_step_merging import merge_smallest_time_step


@dataclass(frozen=True, slots=True)
class HopGnnStrategy:
    """Strategy that trains seeds at their owners; each model visits the owners of its mini-batch's seeds.

    Model d is at rank (d + t) mod N at time step t, with its gradient sums (HopGNN section 5.1).

    Parameters
    ----------
    pre_gather
        Whether a rank fetches its remote rows once for all time steps (section 5.2), instead of in each.
    num_times
        Number of time steps after merging (section 5.3), 1 to N; None for N.
    """

    pre_gather: bool = True
    num_times: int | None = None
    name = "hopgnn"
    description = "models, which visit the homes of their roots in turn; and the rows that these lack"
    draws_locally = False

    def __post_init__(self) -> None:
        if self.num_times is not None and self.num_times < 1:
            raise ValueError(f"num_times is {self.num_times}: give at least 1 time step")

    def place(self, seeds: Seeds) -> Placement:
        """Place micrographs at the owners of their seeds when their model is there; then merge time steps."""
        num_ranks = seeds.num_ranks
        models = split_in_order(len(seeds.owners), num_ranks)
        ranks = np.arange(num_ranks, dtype=np.int32)
        placement = Placement(
            models=models,
            times=(seeds.owners.astype(np.int32) - models) % num_ranks,
            paths=(ranks[:, None] + ranks[None]) % num_ranks,
        )
        for _ in range(num_ranks - min(self.num_times or num_ranks, num_ranks)):
            placement = merge_smallest_time_step(placement)
        return placement

    def traffic(self, placement: Placement, owners: NDArray[Any], sampled: InputBlock) -> Traffic:
        """Count the remote rows, and the models that migrate between time steps."""
        count_rows = traffic_with_pregather if self.pre_gather else traffic_without_pregather
        return replace(count_rows(placement, owners, sampled), models=_migrations(placement))


def _migrations(placement: Placement) -> Counts:
    num = placement.num_ranks
    moves = np.zeros((num, num), np.int64)
    for origins, targets in zip(placement.paths[:-1], placement.paths[1:], strict=True):
        np.add.at(moves, (origins, targets), 1)
    return moves
