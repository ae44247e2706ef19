"""Which units of a step this rank trains, and when: every rank comes to the same placement."""

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
    """The placement of every step, by a strategy.

    Parameters
    ----------
    strategy
        Gives the strategy of a step.
    homes
        [V] the rank that has each vertex's rows; of links, [M] the rank that has each source's.
    rank, size
        The number of this rank, and how many there are.
    expected_rows
        Gives the `remote_rows` of `Roots` from units; None where they are not known.
    order
        The batches of a strategy that draws roots from each part; None for those of one machine.
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
        """Gives the strategy of a step."""
        self._homes = homes
        self._rank = rank
        self._size = size
        self._expected_rows = expected_rows
        self._order = order
        self._paths: dict[int, Ranks] = {}

    def own_units(self, step: int, units: Ids) -> list[Ids]:
        """The units of a step that this rank trains, for each of its time steps."""
        if self._order is not None:
            units = self._order.batch(step)
        placement = self._place(step, units)
        if placement.num_times > 1:
            self._paths[step] = placement.paths
        return [np.ascontiguousarray(units[group]) for group in placement.groups_of(self._rank)]

    def units_of_ranks(self, step: int, units: Ids) -> list[Ids]:
        """The units of a step that each rank trains, of a strategy that has one time step."""
        placement = self._place(step, units)
        return [np.ascontiguousarray(units[placement.of_rank(rank)]) for rank in range(self._size)]

    def _place(self, step: int, units: Ids) -> Placement:
        expected = self._expected_rows
        return self.strategy(step).place(
            Roots(
                homes=self._homes[units],
                num_ranks=self._size,
                remote_rows=None if expected is None else lambda: expected(units),
            )
        )

    def move(self, step: int, time: int) -> tuple[Ranks, Ranks]:
        """[N] int32, the rank of each model in a time step, and in the next; asked for once, in turn."""
        paths = self._paths[step]
        if time + 2 == len(paths):
            del self._paths[step]
        return paths[time], paths[time + 1]
