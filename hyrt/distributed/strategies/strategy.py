"""Protocol of placement strategies."""

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
"""Returns the input block of a mini-batch of some units, given by their positions in the step."""


@dataclass(frozen=True, slots=True, eq=False)
class Roots:
    """Units of a step, in sampling order."""

    homes: NDArray[Any]
    """[n] integers, owner rank of the features of each unit's seed."""
    num_ranks: int
    """Number of ranks, N."""
    remote_rows: Callable[[], NDArray[np.float64]] | None = None
    """Computes [n, N] float64, the expected remote rows of each unit if a rank trains it; None if unknown,
    which disables load balancing.
    """

    __repr__ = one_line


class Strategy(Protocol):
    """Decides where the units of a step are trained, and counts the resulting traffic.

    A strategy is a pure function of data that every rank has, so all ranks compute the same result without
    communication. Any placement gives the same gradient sums, up to rounding.
    """

    @property
    def name(self) -> str:
        """Name in settings and tables."""
        ...

    @property
    def description(self) -> str:
        """Short description of the data that are sent."""
        ...

    @property
    def draws_locally(self) -> bool:
        """Whether each rank draws seeds from its part, which changes the batches."""
        ...

    def place(self, roots: Roots) -> Placement:
        """Assign each unit to a rank and a time step."""
        ...

    def traffic(self, placement: Placement, homes: NDArray[Any], sampled: InputBlock) -> Traffic:
        """Count the data sent in a step, without gradient sums.

        Parameters
        ----------
        placement
            Result of `place` for the step.
        homes
            [V] owner rank of each vertex's features.
        sampled
            Samples the step's units.
        """
        ...
