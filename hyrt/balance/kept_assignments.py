"""Saving and restoring a run's assignments in its checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyrt.balance.reason import THREADED
from hyrt.pipeline.stages import Stages


def kept_assignments(stages: Stages, cores: int) -> dict[str, Any] | None:
    """Return the decided assignments as plain values; None if a trainer is lost, so that a resumed run
    retries it.
    """
    if any(trainer.lost is not None for trainer in stages.trainers):
        return None
    return {
        "trainers": [trainer.name for trainer in stages.trainers],
        "most_units": [trainer.most_units for trainer in stages.trainers],
        "cores": cores,
        "schedule": stages.schedule.state(),
    }


def restore_assignments(
    kept: Mapping[str, Any], stages: Stages, step: int, cores: int, given: Mapping[str, int]
) -> bool:
    """Restore the assignments that `kept_assignments` saved, from a step on.

    Parameters
    ----------
    kept
        The saved values.
    stages
        Stages of the resumed run, with its initial assignment.
    step
        The next step.
    cores
        Cores available to this process; if their number has changed, the initial threads are used.
    given
        Threads fixed by the settings per stage (sample, load, train); 0 if not fixed.

    Returns
    -------
    Whether the saved values have this run's trainers and units per step; if not, no values are restored. With
    another number of ranks, the units per step differ.
    """
    if kept["trainers"] != [trainer.name for trainer in stages.trainers]:
        return False
    units = sum(stages.schedule.latest.split)
    if any(sum(split) != units for _, split, _ in kept["schedule"]):
        return False
    start = stages.schedule.latest.threads
    if kept["cores"] != cores:
        given = {stage: getattr(start, stage) for stage in THREADED}
    schedule = [
        (first, split, [given[stage] or count for stage, count in zip(THREADED, counts, strict=True)])
        for first, split, counts in kept["schedule"]
    ]
    stages.schedule.restore(schedule, step)
    for trainer, limit in zip(stages.trainers, kept["most_units"], strict=True):
        trainer.most_units = limit
    return True
