"""Every root is trained where its features live; balanced at the least cost in rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.evening.even_out import cheapest_ranks
from hyrt.distributed.strategies.gathering import gathered_once
from hyrt.distributed.strategies.placement import Placement, stay
from hyrt.distributed.strategies.strategy import InputBlock, Roots
from hyrt.distributed.strategies.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Home:
    """Units go to the rank that has their rows, in one pass, and the models stay.

    Replicas hold equal weights and gradient sums are added over all ranks, so a step's gradient is the same
    whichever rank computes a unit: no model has to move.

    Parameters
    ----------
    most_over_mean
        The most units that a rank may get, over their mean, where the expected remote rows are known.
    """

    most_over_mean: float = 1.05
    name = "home"
    description = "roots, to the rank that has their features"
    draws_locally = False

    def __post_init__(self) -> None:
        if not self.most_over_mean >= 1:
            raise ValueError(f"most_over_mean is {self.most_over_mean}: give a number of at least 1")

    def place(self, roots: Roots) -> Placement:
        """Units at their homes, moved as little as the bound on a rank's units asks for."""
        if roots.remote_rows is None or not len(roots.homes):
            return stay(roots.homes, roots.num_ranks)
        most = math.ceil(len(roots.homes) / roots.num_ranks * self.most_over_mean)
        if np.bincount(roots.homes).max() <= most:
            return stay(roots.homes, roots.num_ranks)
        added = _added_rows(roots.remote_rows(), roots.homes)
        return stay(cheapest_ranks(added, roots.homes, [most] * roots.num_ranks), roots.num_ranks)

    def traffic(self, placement: Placement, homes: NDArray[Any], sampled: InputBlock) -> Traffic:
        """The remote rows of every rank's mini-batch."""
        return gathered_once(placement, homes, sampled)


def _added_rows(remote_rows: NDArray[np.float64], homes: NDArray[Any]) -> NDArray[np.float64]:
    """What each rank costs beyond the unit's home; never less than nothing, so that no unit leaves for that.

    Expected rows are of a unit alone. The rows that it shares with others at home are not in them, and are
    what makes home the better place in nearly all cases.
    """
    at_home = remote_rows[np.arange(len(homes)), homes.astype(np.intp)]
    return np.maximum(remote_rows - at_home[:, None], 0.0)
