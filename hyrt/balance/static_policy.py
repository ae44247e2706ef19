"""The policy that leaves the assignment as it is."""

from __future__ import annotations

from collections.abc import Sequence

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.policy import AssignmentLimits, Decision, Observation


class StaticPolicy:
    """Changes nothing, whatever it sees."""

    name = "static"
    description = "keeps the split and the threads as they were at the start"

    def decide(
        self, history: Sequence[Observation], present: Assignment, limits: AssignmentLimits
    ) -> Decision:
        """The present assignment."""
        return Decision(assignment=present)
