"""Which part of every step a process does, and in how many time steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hyrt.quantities import one_line
from hyrt.sampling.block import Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """A process's part of every step; the defaults are those of a process that does all of it, at once.

    A step may be divided into time steps: each has mini-batches of its own, and is propagated by all trainers
    before the next one begins.
    """

    num_processes: int = 1
    """How many processes train together."""
    own_units: Callable[[int, Ids], Sequence[Ids]] = lambda step, units: [units]
    """Gives, from the number of a step and its units, those that this process trains, for each time step."""
    most_times: int = 1
    """The most time steps that a step has."""
    fetches_each_time: bool = False
    """Whether remote rows are fetched in each time step; else once for all of a step."""

    __repr__ = one_line


ALL = StepPart()
"""All of it."""
