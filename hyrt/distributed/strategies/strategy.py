"""What a strategy is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.placement import Placement
from hyrt.distributed.strategies.traffic import Traffic
from hyrt.quantities import one_line
from hyrt.sampling.block import Block

InputBlock = Callable[[NDArray[np.intp]], Block]
"""Gives the input's block of the mini-batch of some units, which are named by their positions in the step."""


@dataclass(frozen=True, slots=True, eq=False)
class Roots:
    """The units of a step, in the order drawn."""

    homes: NDArray[Any]
    """[n] unsigned or signed integers, the rank that has the features of each unit's root."""
    num_ranks: int
    """The number of ranks, N."""
    remote_rows: Callable[[], NDArray[np.float64]] | None = None
    """Gives [n, N] float64, the rows that each unit is expected to need from other ranks if that rank trains
    it; None where nobody can tell, and no unit is then moved for the sake of balance."""

    __repr__ = one_line


class Strategy(Protocol):
    """Decides where the units of a step are trained, and knows what that sends.

    A strategy is a pure function of what every rank knows: all ranks come to the same result without asking
    each other. Any placement gives the same sums of gradients, up to rounding.
    """

    @property
    def name(self) -> str:
        """The name in settings and tables."""
        ...

    @property
    def description(self) -> str:
        """What moves, in a few words."""
        ...

    @property
    def draws_locally(self) -> bool:
        """Whether each rank draws its roots from its own part, which changes what is trained."""
        ...

    def place(self, roots: Roots) -> Placement:
        """Which rank trains each unit, and in which time step."""
        ...

    def traffic(self, placement: Placement, homes: NDArray[Any], sampled: InputBlock) -> Traffic:
        """What travels in a step, without the sums of gradients.

        Parameters
        ----------
        placement
            The step's, as `place` gave it.
        homes
            [V] the rank that has each vertex's features.
        sampled
            Samples the step's units.
        """
        ...
