"""Which rank trains which unit of a step, and at which time step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.quantities import one_line

Ranks = NDArray[np.int32]
"""Ranks, models or time steps, int32."""


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Who trains what in a step of n units, on N ranks and in T time steps.

    A model is the replica that a mini-batch of the step was drawn for; where models stay, model d is rank d.
    """

    models: Ranks
    """[n] int32, the model that trains each unit, in the order drawn."""
    times: Ranks
    """[n] int32, the time step in which it does."""
    paths: Ranks
    """[T, N] int32, the rank that each model is at in each time step; every row is a permutation."""

    __repr__ = one_line

    @property
    def num_ranks(self) -> int:
        return int(self.paths.shape[1])

    @property
    def num_times(self) -> int:
        return int(self.paths.shape[0])

    @property
    def ranks(self) -> Ranks:
        """[n] int32, the rank that trains each unit."""
        found: Ranks = self.paths[self.times, self.models]
        return found

    def of_rank(self, rank: int) -> NDArray[np.intp]:
        """Positions in the step of the units that a rank trains, in the order of time and then of drawing."""
        mine = np.flatnonzero(self.ranks == rank)
        return mine[np.argsort(self.times[mine], kind="stable")]

    def groups_of(self, rank: int) -> list[NDArray[np.intp]]:
        """The same, apart for each time step."""
        mine = np.flatnonzero(self.ranks == rank)
        return [mine[self.times[mine] == time] for time in range(self.num_times)]


def stay(ranks: NDArray[Any], num_ranks: int) -> Placement:
    """The placement of units at ranks whose models stay where they are.

    Parameters
    ----------
    ranks
        [n] the rank that trains each unit.
    num_ranks
        The number of ranks.
    """
    return Placement(
        models=ranks.astype(np.int32),
        times=np.zeros(len(ranks), np.int32),
        paths=np.arange(num_ranks, dtype=np.int32)[None],
    )


def drawn_pieces(num_units: int, num_ranks: int) -> Ranks:
    """[n] int32, the mini-batch of each unit: the order drawn is cut into pieces that differ by at most one.

    Parameters
    ----------
    num_units
        The units of the step.
    num_ranks
        The number of pieces.
    """
    ends = np.rint(np.arange(1, num_ranks + 1) * (num_units / num_ranks)).astype(np.int64)
    return np.searchsorted(ends, np.arange(num_units), side="right").astype(np.int32)
