"""Measured speed of each rank, and the share of a step's units that follows from it."""

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

# One thread runs these stages for all trainers of a rank; the other stages have a thread per trainer.
_SHARED_STAGES = ("sample", "load")
# Maximum fraction of an epoch's steps that may still use the previous shares.
_MAX_MIXED_STEPS = 1 / 4
_MEASURED_STAGES = (*_SHARED_STAGES, "transfer", "propagate")


class RankSpeeds(Hook):
    """Measures this rank's stages, without waiting for other ranks, and exchanges the speeds.

    All ranks know the speeds of all ranks, and therefore compute the same shares.

    Parameters
    ----------
    group
        The ranks, for the thread that trains.
    steps_per_epoch
        Number of steps per epoch.
    ahead
        Number of steps that may already have been split when an epoch ends; they keep their shares.
    overlapped
        Whether stages run concurrently.
    """

    def __init__(self, group: RankGroup, steps_per_epoch: int, ahead: int, *, overlapped: bool) -> None:
        self._group = group
        self._steps_per_epoch = steps_per_epoch
        self._ahead = ahead
        self._overlapped = overlapped
        self._lag = decision_lag(steps_per_epoch, ahead, _MAX_MIXED_STEPS)
        self._first_epoch = 0
        # Replaced as a whole, never modified: the sampling thread reads it concurrently.
        self._epochs: tuple[MeasuredEpoch, ...] = ()
        # Seconds and units by stage and trainer; each entry is written by one thread.
        self._stage_totals: dict[tuple[str, int], list[float]] = {}

    def shares_of(self, step: int) -> tuple[float, ...]:
        """Return each rank's share of a step, [N]."""
        ended = max(0, step - self._ahead) // self._steps_per_epoch
        known = min(ended, step // self._steps_per_epoch + 1 - self._lag) - self._first_epoch
        return shares_by_speed(self._epochs[: max(0, known)], self._group.size, self._lag)

    def go_on_after(self, epochs: int) -> None:
        """Start measuring after `epochs` epochs of an earlier run, whose measurements are lost."""
        self._first_epoch = epochs

    def around(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        """Measure the time of a stage."""
        if stage not in _MEASURED_STAGES or site.units < 1:
            return work()
        started = time.perf_counter()
        result = work()
        totals = self._stage_totals.setdefault((stage, site.trainer), [0.0, 0.0])
        totals[0] += time.perf_counter() - started
        totals[1] += site.units
        return result

    def hear(self, event: Event) -> None:
        """Exchange the speeds of all ranks after an epoch; all ranks call it at the same time."""
        if not isinstance(event, EpochEnded):
            return
        records = told_by_all(self._group, [event.seconds, self._speed()])
        measured = MeasuredEpoch(records[0][0], tuple(speed for _, speed in records))
        self._epochs = (*self._epochs, measured)

    def end(self, summary: dict[str, Any]) -> Notice:
        """Add the shares of the last step to the summary."""
        shares = [round(share, 3) for share in self.shares_of(summary["steps"])]
        summary["rank_shares"] = shares
        setting = ",".join(f"{share:g}" for share in shares)
        return Notice(
            kind="info",
            text="work was divided by measured rank speed; to reuse this split, set "
            f"distributed.shares={setting}",
        )

    def _speed(self) -> float | None:
        """Return the units per second since the last epoch; None without measurements."""
        totals, self._stage_totals = self._stage_totals, {}
        stages: dict[str, float] = {}
        units: dict[str, float] = {}
        for (stage, _), (seconds, trainer_units) in list(totals.items()):
            combine = sum if stage in _SHARED_STAGES else max
            stages[stage] = combine((stages.get(stage, 0.0), seconds))
            units[stage] = units.get(stage, 0.0) + trainer_units
        if not stages:
            return None
        slowest_s = max(stages.values()) if self._overlapped else sum(stages.values())
        return max(units.values()) / slowest_s
