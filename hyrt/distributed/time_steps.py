"""Into how many time steps the steps of a run are divided, as its epochs get faster or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.strategies.merging import decision_lag, num_time_steps
from hyrt.observe.events import EpochEnded, Event
from hyrt.observe.hook import Hook

# Steps of another number change an epoch's time by less than epochs differ anyway.
_MIXED = 1 / 20


class TimeSteps(Hook):
    """Merges time steps from the second epoch on, as long as that makes epochs faster (HopGNN section 5.3).

    Every rank goes by the times of rank 0, so that all of them come to the same number.

    Parameters
    ----------
    group
        The ranks, for the thread that trains.
    steps_per_epoch
        The length of an epoch.
    ahead
        How many steps may have been cut when an epoch ends: they keep the number that they have.
    given
        The number of time steps, where it is not to be examined; else None.
    """

    def __init__(self, group: RankGroup, steps_per_epoch: int, ahead: int, given: int | None = None) -> None:
        self._group = group
        self._steps_per_epoch = steps_per_epoch
        self._ahead = ahead
        self._lag = decision_lag(steps_per_epoch, ahead, _MIXED)
        self._given = given
        # Replaced as a whole, never changed: the thread that samples reads it meanwhile.
        self._epochs_s: tuple[float, ...] = ()

    def of(self, step: int) -> int:
        """The number of time steps of a step."""
        if self._given is not None:
            return min(self._given, self._group.size)
        ended = max(0, step - self._ahead) // self._steps_per_epoch
        known = min(ended, step // self._steps_per_epoch + 1 - self._lag)
        return num_time_steps(self._epochs_s[: max(0, known)], self._group.size, self._lag)

    def restore(self, epochs_s: Sequence[float]) -> None:
        """Go on after epochs that took so many seconds at rank 0."""
        self._epochs_s = tuple(epochs_s)

    def hear(self, event: Event) -> None:
        """Learn how long an epoch took at rank 0."""
        if isinstance(event, EpochEnded) and self._given is None:
            seconds = torch.tensor([event.seconds], dtype=torch.float64)
            self._group.from_first(seconds, "control")
            self._epochs_s = (*self._epochs_s, float(seconds))

    def end(self, summary: dict[str, Any]) -> None:
        """Add the number that the last step had."""
        summary["time_steps"] = self.of(summary["steps"])
