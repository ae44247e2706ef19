"""Placement of a step's units on ranks and time steps."""

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
    """Assignment of a step's n units to N ranks and T time steps.

    A model is the replica that a mini-batch of the step was drawn for; if models do not migrate, model d is
    at rank d.
    """

    models: Ranks
    """[n] int32, model that trains each unit, in sampling order."""
    times: Ranks
    """[n] int32, time step of each unit."""
    paths: Ranks
    """[T, N] int32, rank of each model in each time step; every row is a permutation."""

    __repr__ = one_line

    @property
    def num_ranks(self) -> int:
        return int(self.paths.shape[1])

    @property
    def num_times(self) -> int:
        return int(self.paths.shape[0])

    @property
    def ranks(self) -> Ranks:
        """[n] int32, rank that trains each unit."""
        ranks: Ranks = self.paths[self.times, self.models]
        return ranks

    def of_rank(self, rank: int) -> NDArray[np.intp]:
        """Return the positions of a rank's units in the step, by time step and then sampling order."""
        positions = np.flatnonzero(self.ranks == rank)
        return positions[np.argsort(self.times[positions], kind="stable")]

    def groups_of(self, rank: int) -> list[NDArray[np.intp]]:
        """Return the positions of a rank's units in the step, one array per time step."""
        positions = np.flatnonzero(self.ranks == rank)
        return [positions[self.times[positions] == time] for time in range(self.num_times)]


def stay(ranks: NDArray[Any], num_ranks: int) -> Placement:
    """Create a placement whose models do not migrate.

    Parameters
    ----------
    ranks
        [n] rank that trains each unit.
    num_ranks
        Number of ranks.
    """
    return Placement(
        models=ranks.astype(np.int32),
        times=np.zeros(len(ranks), np.int32),
        paths=np.arange(num_ranks, dtype=np.int32)[None],
    )


def drawn_pieces(num_units: int, num_ranks: int) -> Ranks:
    """Split the units in sampling order into equal parts; return each unit's part.

    The sizes differ by at most one.

    Parameters
    ----------
    num_units
        Number of units of the step.
    num_ranks
        Number of parts.

    Returns
    -------
    [n] int32.
    """
    ends = np.rint(np.arange(1, num_ranks + 1) * (num_units / num_ranks)).astype(np.int64)
    return np.searchsorted(ends, np.arange(num_units), side="right").astype(np.int32)
