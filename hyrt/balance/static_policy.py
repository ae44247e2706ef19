"""Policy that never changes the assignment."""

from __future__ import annotations

from collections.abc import Sequence

from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Decision, Observation


class StaticPolicy:
    """Policy that never changes the assignment."""

    name = "static"
    description = "keeps the split and the threads as they were at the start"

    def decide(
        self, history: Sequence[Observation], present: Assignment, limits: AssignmentLimits
    ) -> Decision:
        return Decision(assignment=present)
