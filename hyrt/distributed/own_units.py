"""Which units of a step this rank trains."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.strategy import Roots, Strategy
from hyrt.sampling.block import Ids


class OwnUnits:
    """Gives this rank's units of a step, as the strategy places them; every rank comes to the same placement.

    Parameters
    ----------
    strategy
        The strategy.
    homes
        [V] the rank that has each vertex's rows.
    rank, size
        The number of this rank, and how many there are.
    """

    def __init__(self, strategy: Strategy, homes: NDArray[Any], rank: int, size: int) -> None:
        self._strategy = strategy
        self._homes = homes
        self._rank = rank
        self._size = size

    def __call__(self, units: Ids) -> Ids:
        placement = self._strategy.place(Roots(homes=self._homes[units], num_ranks=self._size))
        return np.ascontiguousarray(units[placement.of_rank(self._rank)])
