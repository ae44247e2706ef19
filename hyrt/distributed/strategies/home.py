"""Home strategy, which trains each seed at the owner of its features, with min-cost load balancing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.load_balancing import min_cost_assignment
from hyrt.distributed.strategies.strategy import (
    InputBlock,
    Placement,
    Seeds,
    Traffic,
    place_without_migration,
    traffic_with_pregather,
)


@dataclass(frozen=True, slots=True)
class HomeStrategy:
    """Strategy that trains units at the rank that owns their feature rows; models do not migrate.

    Replicas hold equal weights, and gradient sums are added over all ranks. A step's gradient is therefore
    the same for any assignment of units to ranks.

    Parameters
    ----------
    max_over_mean
        Maximum ratio of a rank's number of units to its share of the step, if expected remote rows are known.
    shares
        [N] positive numbers, proportional to the ranks' unit counts; None for equal shares. If expected
        remote rows are unknown, the shares still apply and all moves have the same cost.
    """

    max_over_mean: float = 1.05
    shares: tuple[float, ...] | None = None
    name = "home"
    description = "roots, to the rank that has their features"
    refuses = ("subgraph_units",)
    draws_locally = False

    def __post_init__(self) -> None:
        if not self.max_over_mean >= 1:
            raise ValueError(f"max_over_mean must be at least 1, got {self.max_over_mean}")

    def place(self, seeds: Seeds) -> Placement:
        """Place units at their owners; if owners exceed their limits, move units at the least total cost."""
        homes, num_ranks = seeds.owners, seeds.num_ranks
        if not len(homes) or (seeds.remote_rows is None and self.shares is None):
            return place_without_migration(homes, num_ranks)
        shares = self.shares or (1.0,) * num_ranks
        capacities = [math.ceil(len(homes) * self.max_over_mean * share / sum(shares)) for share in shares]
        if (np.bincount(homes, minlength=num_ranks) <= capacities).all():
            return place_without_migration(homes, num_ranks)
        added = _added_rows(seeds)
        return place_without_migration(min_cost_assignment(added, homes, capacities), num_ranks)

    def traffic(self, placement: Placement, owners: NDArray[Any], sampled: InputBlock) -> Traffic:
        return traffic_with_pregather(placement, owners, sampled)


def _added_rows(roots: Seeds) -> NDArray[np.float64]:
    """Compute how many more remote rows each rank needs than the unit's owner, at least 0.

    The lower bound keeps a unit at its owner even if another rank seems cheaper. Expected rows refer to a
    single unit and ignore rows that the owner needs for its other units anyway, which make the owner the
    better choice in nearly all cases.
    """
    homes, units = roots.owners.astype(np.intp), np.arange(len(roots.owners))
    if roots.remote_rows is None:
        elsewhere = np.ones((len(homes), roots.num_ranks))
        elsewhere[units, homes] = 0.0
        return elsewhere
    remote_rows = roots.remote_rows()
    return np.maximum(remote_rows - remote_rows[units, homes][:, None], 0.0)
