"""Placement of each step's units on ranks and time steps; all ranks compute the same placement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.local import LocalOrder
from hyrt.distributed.strategies.placement import Placement, Ranks
from hyrt.distributed.strategies.strategy import Roots, Strategy
from hyrt.sampling.block import Ids


class PlacedSteps:
    """Placement of every step by a strategy.

    Parameters
    ----------
    strategy
        Returns the strategy of a step.
    homes
        [V] owner rank of each vertex; for links, [M] owner rank of each source.
    rank, size
        Number of this rank, and number of ranks.
    expected_rows
        Computes the `remote_rows` of `Roots` from units; None if they are unknown.
    order
        Batches of a strategy that draws targets from each part; None for the batches of the sampler.
    """

    def __init__(
        self,
        strategy: Callable[[int], Strategy],
        homes: NDArray[Any],
        rank: int,
        size: int,
        expected_rows: Callable[[Ids], NDArray[np.float64]] | None = None,
        order: LocalOrder | None = None,
    ) -> None:
        self.strategy = strategy
        """Returns the strategy of a step."""
        self._owners = homes
        self._rank = rank
        self._size = size
        self._expected_rows = expected_rows
        self._order = order
        self._paths: dict[int, Ranks] = {}

    def own_units(self, step: int, units: Ids) -> list[Ids]:
        """Return the units of a step that this rank trains, per time step."""
        if self._order is not None:
            units = self._order.batch(step)
        placement = self._place(step, units)
        if placement.num_times > 1:
            self._paths[step] = placement.paths
        return [np.ascontiguousarray(units[group]) for group in placement.groups_of(self._rank)]

    def units_of_ranks(self, step: int, units: Ids) -> list[Ids]:
        """Return the units of a step that each rank trains; only for strategies with one time step."""
        placement = self._place(step, units)
        return [np.ascontiguousarray(units[placement.of_rank(rank)]) for rank in range(self._size)]

    def _place(self, step: int, units: Ids) -> Placement:
        expected = self._expected_rows
        return self.strategy(step).place(
            Roots(
                homes=self._owners[units],
                num_ranks=self._size,
                remote_rows=None if expected is None else lambda: expected(units),
            )
        )

    def move(self, step: int, time: int) -> tuple[Ranks, Ranks]:
        """Return the rank of each model in a time step and in the next, [N] int32.

        To be called once per time step, in order.
        """
        paths = self._paths[step]
        if time + 2 == len(paths):
            del self._paths[step]
        return paths[time], paths[time + 1]
