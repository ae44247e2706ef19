"""How fast each rank trains its units, and which part of a step's units it gets for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.strategies.evening.shares_by_speed import MeasuredEpoch, shares_by_speed
from hyrt.distributed.strategies.merging import decision_lag
from hyrt.distributed.watch.rank_figures import told_by_all
from hyrt.observe.events import EpochEnded, Event, Notice
from hyrt.observe.hook import Hook, Site

T = TypeVar("T")

# One thread does these for all trainers of a rank; the others have a thread for each.
_OF_ALL = ("sample", "load")
# An epoch may have so large a share of steps with the parts before.
_MIXED = 1 / 4
_MEASURED = (*_OF_ALL, "transfer", "propagate")


class RankSpeeds(Hook):
    """Measures this rank's stages, without what it waits for other ranks, and tells the others.

    All ranks know the speeds of all, and so come to the same parts.

    Parameters
    ----------
    group
        The ranks, for the thread that trains.
    steps_per_epoch
        The length of an epoch.
    ahead
        How many steps may have been cut when an epoch ends: they keep the parts that they have.
    overlapped
        Whether stages work at the same time.
    """

    def __init__(self, group: RankGroup, steps_per_epoch: int, ahead: int, *, overlapped: bool) -> None:
        self._group = group
        self._steps_per_epoch = steps_per_epoch
        self._ahead = ahead
        self._overlapped = overlapped
        self._lag = decision_lag(steps_per_epoch, ahead, _MIXED)
        self._first_epoch = 0
        # Replaced as a whole, never changed: the thread that samples reads it meanwhile.
        self._epochs: tuple[MeasuredEpoch, ...] = ()
        # Seconds and units by stage and trainer; one thread writes each.
        self._taken: dict[tuple[str, int], list[float]] = {}

    def shares_of(self, step: int) -> tuple[float, ...]:
        """[N] the part of a step that each rank gets."""
        ended = max(0, step - self._ahead) // self._steps_per_epoch
        known = min(ended, step // self._steps_per_epoch + 1 - self._lag) - self._first_epoch
        return shares_by_speed(self._epochs[: max(0, known)], self._group.size, self._lag)

    def go_on_after(self, epochs: int) -> None:
        """Begin anew after so many epochs: what they took is not known any more."""
        self._first_epoch = epochs

    def around(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        """Note what the stage takes for a share."""
        if stage not in _MEASURED or site.units < 1:
            return work()
        started = time.perf_counter()
        result = work()
        taken = self._taken.setdefault((stage, site.trainer), [0.0, 0.0])
        taken[0] += time.perf_counter() - started
        taken[1] += site.units
        return result

    def hear(self, event: Event) -> None:
        """Tell how fast the epoch's units were, and hear it of the others; all ranks do so at once."""
        if not isinstance(event, EpochEnded):
            return
        told = told_by_all(self._group, [event.seconds, self._speed()])
        measured = MeasuredEpoch(told[0][0], tuple(speed for _, speed in told))
        self._epochs = (*self._epochs, measured)

    def end(self, summary: dict[str, Any]) -> Notice:
        """Add the parts that the last step had."""
        shares = [round(share, 3) for share in self.shares_of(summary["steps"])]
        summary["rank_shares"] = shares
        given = ",".join(f"{share:g}" for share in shares)
        return Notice(
            kind="info", text=f"parts of a step by the ranks' speeds: distributed.shares={given} keeps them"
        )

    def _speed(self) -> float | None:
        """Units a second since the last epoch; None without any."""
        taken, self._taken = self._taken, {}
        stages: dict[str, float] = {}
        units: dict[str, float] = {}
        for (stage, _), (seconds, of_trainer) in list(taken.items()):
            together = sum if stage in _OF_ALL else max
            stages[stage] = together((stages.get(stage, 0.0), seconds))
            units[stage] = units.get(stage, 0.0) + of_trainer
        if not stages:
            return None
        slowest_s = max(stages.values()) if self._overlapped else sum(stages.values())
        return max(units.values()) / slowest_s
