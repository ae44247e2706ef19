"""The profiles of a run's steps, each worked out once."""

from __future__ import annotations

from collections.abc import Sequence

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.prediction.extra_terms import Terms
from hyrt_perfmodel.simulation.changes import Change, Speeds, check_changes, speeds_at
from hyrt_perfmodel.simulation.step_profile import (
    StepProfile,
    can_slow,
    has_shared_resources,
    step_profile,
)
from hyrt_perfmodel.workloads.workload import TrainingWorkload


class Profiles:
    """What the steps of a run take on a machine that changes.

    Parameters
    ----------
    platform, training, terms
        The arguments of `stage_times`.
    changes
        Changes of the machine's speeds.

    Raises
    ------
    ValueError
        If a change is of a trainer that the platform does not have.
    """

    def __init__(
        self, platform: Platform, training: TrainingWorkload, terms: Terms, changes: Sequence[Change]
    ) -> None:
        self.num_trainers = len(platform.trainers(training.model))
        self._platform, self._terms = platform, terms
        self._training = training.remembered()
        check_changes(changes, self.num_trainers)
        self._changes = changes
        self._known: dict[tuple[Assignment, Speeds], StepProfile] = {}

    def of(self, step: int, assignment: Assignment) -> StepProfile:
        """The profile of a step under an assignment."""
        return self._profile(assignment, speeds_at(self._changes, step))

    def can_slow(self, assignment: Assignment | None) -> bool:
        """Whether stages can slow each other in a run under one assignment, or under any where it is None."""
        if not has_shared_resources(self._platform, self._terms):
            return False
        if assignment is None:
            return True
        steps = sorted({0, *(change.step for change in self._changes)})
        return can_slow([self.of(step, assignment) for step in steps])

    def _profile(self, assignment: Assignment, speeds: Speeds) -> StepProfile:
        key = (assignment, speeds)
        if key not in self._known:
            self._known[key] = step_profile(self._platform, self._training, assignment, self._terms, speeds)
        return self._known[key]
