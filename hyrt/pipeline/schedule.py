"""Which assignment each step runs under."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hyrt_perfmodel.assignment import Assignment, Threads


class Schedule:
    """The present assignment, and those that are decided but act later.

    A change acts on the first step that cannot have been cut yet, so that equal events give equal bits.
    Changed by the consumer of steps, read by every stage.

    Parameters
    ----------
    first
        The assignment of the first step.
    """

    def __init__(self, first: Assignment) -> None:
        # Replaced as a whole, never changed: the stages read it meanwhile.
        self._entries: tuple[tuple[int, Assignment], ...] = ((0, first),)
        self.ahead = 1
        """Steps between a change and the first step that runs under it."""

    @property
    def latest(self) -> Assignment:
        """That of the steps that are not cut yet."""
        return self._entries[-1][1]

    def of(self, step: int) -> Assignment:
        """What one step runs under; asked for steps that are in flight or to come."""
        return next(assignment for first, assignment in reversed(self._entries) if first <= step)

    def change(self, step: int, assignment: Assignment) -> int:
        """Decide another assignment when a step is through.

        Returns
        -------
        The first step that runs under it.
        """
        first = step + self.ahead
        past = max(entry[0] for entry in self._entries if entry[0] <= step)
        kept = [entry for entry in self._entries if past <= entry[0] < first]
        self._entries = (*kept, (first, assignment))
        return first

    def state(self) -> list[tuple[int, tuple[int, ...], tuple[int, int, int]]]:
        """All of it as plain values, for a checkpoint."""
        return [
            (first, entry.split, (entry.threads.sample, entry.threads.load, entry.threads.train))
            for first, entry in self._entries
        ]

    def restore(self, state: Sequence[Any], step: int) -> None:
        """Go on at a step from what `state` gave.

        Raises
        ------
        ValueError
            If it says nothing of that step.
        """
        entries = tuple(
            (
                int(first),
                Assignment(
                    split=tuple(split),
                    threads=Threads(sample=threads[0], load=threads[1], train=threads[2]),
                ),
            )
            for first, split, threads in state
        )
        if not entries or entries[0][0] > step:
            raise ValueError(f"its assignments do not cover step {step}")
        self._entries = entries
