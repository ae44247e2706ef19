"""The assignments of a run in its checkpoints: a resumed run goes on from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hyrt.balance.reason import THREADED
from hyrt.pipeline.stages import Stages


def kept_assignments(stages: Stages, cores: int) -> dict[str, Any] | None:
    """What is decided, as plain values; None where a trainer is lost: a resumed run tries it again."""
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
    """Go on at a step with what `kept_assignments` gave.

    Parameters
    ----------
    kept
        What the checkpoint holds.
    stages
        The stages of the resumed run, with the assignment that it would start with.
    step
        The first to come.
    cores
        The cores that this process may use; if their number has changed, the threads are those of the start.
    given
        Threads of the settings by stage (sample, load, train); 0 where they give none.

    Returns
    -------
    Whether they are of this run's trainers, and of steps with as many units; if not, nothing changes. Another
    number of ranks leaves each of them other units.
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
    for trainer, most in zip(stages.trainers, kept["most_units"], strict=True):
        trainer.most_units = most
    return True
