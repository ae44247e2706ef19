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
        The most units that a rank may get, over its part of the step, where the expected remote rows are
        known.
    shares
        [N] positive numbers, in proportion to which ranks get units; None for equal parts. Where the expected
        remote rows are not known, given parts are kept to, and all units that may be moved count the same.
    """

    most_over_mean: float = 1.05
    shares: tuple[float, ...] | None = None
    name = "home"
    description = "roots, to the rank that has their features"
    draws_locally = False

    def __post_init__(self) -> None:
        if not self.most_over_mean >= 1:
            raise ValueError(f"most_over_mean is {self.most_over_mean}: give a number of at least 1")

    def place(self, roots: Roots) -> Placement:
        """Units at their homes, moved as little as the bound on a rank's units asks for."""
        homes, num_ranks = roots.homes, roots.num_ranks
        if not len(homes) or (roots.remote_rows is None and self.shares is None):
            return stay(homes, num_ranks)
        shares = self.shares or (1.0,) * num_ranks
        most = [math.ceil(len(homes) * self.most_over_mean * share / sum(shares)) for share in shares]
        if (np.bincount(homes, minlength=num_ranks) <= most).all():
            return stay(homes, num_ranks)
        added = _added_rows(roots)
        return stay(cheapest_ranks(added, homes, most), num_ranks)

    def traffic(self, placement: Placement, homes: NDArray[Any], sampled: InputBlock) -> Traffic:
        """The remote rows of every rank's mini-batch."""
        return gathered_once(placement, homes, sampled)


def _added_rows(roots: Roots) -> NDArray[np.float64]:
    """What each rank costs beyond the unit's home; never less than nothing, so that no unit leaves for that.

    Expected rows are of a unit alone. The rows that it shares with others at home are not in them, and are
    what makes home the better place in nearly all cases.
    """
    homes, units = roots.homes.astype(np.intp), np.arange(len(roots.homes))
    if roots.remote_rows is None:
        elsewhere = np.ones((len(homes), roots.num_ranks))
        elsewhere[units, homes] = 0.0
        return elsewhere
    remote_rows = roots.remote_rows()
    return np.maximum(remote_rows - remote_rows[units, homes][:, None], 0.0)
