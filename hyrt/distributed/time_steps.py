"""Number of time steps per training step, adapted to measured epoch times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.strategies.merging import decision_lag, num_time_steps
from hyrt.observe.events import EpochEnded, Event
from hyrt.observe.hook import Hook

# A changed number of steps affects an epoch's time by less than the usual variation between epochs.
_MAX_MIXED_SHARE = 1 / 20


class TimeSteps(Hook):
    """Merges time steps from the second epoch on, as long as epochs get faster (HopGNN section 5.3).

    All ranks use the epoch times of rank 0, so that they choose the same number.

    Parameters
    ----------
    group
        The ranks, for the thread that trains.
    steps_per_epoch
        Number of steps per epoch.
    ahead
        Number of steps that may already have been split when an epoch ends; they keep their number of time
        steps.
    given
        Fixed number of time steps; None to adapt it.
    """

    def __init__(self, group: RankGroup, steps_per_epoch: int, ahead: int, given: int | None = None) -> None:
        self._group = group
        self._steps_per_epoch = steps_per_epoch
        self._ahead = ahead
        self._lag = decision_lag(steps_per_epoch, ahead, _MAX_MIXED_SHARE)
        self._fixed = given
        # Replaced as a whole, never modified: the sampling thread reads it concurrently.
        self._epochs_s: tuple[float, ...] = ()

    def of(self, step: int) -> int:
        """Return the number of time steps of a step."""
        if self._fixed is not None:
            return min(self._fixed, self._group.size)
        ended = max(0, step - self._ahead) // self._steps_per_epoch
        known = min(ended, step // self._steps_per_epoch + 1 - self._lag)
        return num_time_steps(self._epochs_s[: max(0, known)], self._group.size, self._lag)

    def restore(self, epochs_s: Sequence[float]) -> None:
        """Restore the epoch times of rank 0, in seconds, from an earlier run."""
        self._epochs_s = tuple(epochs_s)

    def hear(self, event: Event) -> None:
        """Record the duration of an epoch at rank 0."""
        if isinstance(event, EpochEnded) and self._fixed is None:
            seconds = torch.tensor([event.seconds], dtype=torch.float64)
            self._group.from_first(seconds, "control")
            self._epochs_s = (*self._epochs_s, float(seconds))

    def end(self, summary: dict[str, Any]) -> None:
        """Add the number of time steps of the last step."""
        summary["time_steps"] = self.of(summary["steps"])
