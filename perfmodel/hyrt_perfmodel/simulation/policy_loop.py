"""Feedback loop of a policy in a simulated run."""

from __future__ import annotations

from collections import deque

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.policy import AssignmentLimits, Decision, Observation, Policy
from hyrt_perfmodel.simulation.simulated_step import SimulatedStep

_HISTORY = 64


class PolicyLoop:
    """Loop that queries a policy after each step and schedules its decisions.

    Parameters
    ----------
    policy
        The policy; None keeps the assignment.
    start
        Assignment of the first steps.
    limits
        Limits passed to the policy and enforced; a decision takes effect `limits.delay` steps later.
    num_steps
        Steps of the run; the policy is not queried about later steps.
    """

    def __init__(
        self, policy: Policy | None, start: Assignment, limits: AssignmentLimits, num_steps: int
    ) -> None:
        self._policy, self._limits, self._num_steps = policy, limits, num_steps
        self._current = self._latest = start
        self._scheduled: deque[tuple[int, Assignment]] = deque()
        self._history: deque[Observation] = deque(maxlen=_HISTORY)
        self._previous_done_s = 0.0
        self.decisions: list[tuple[int, Decision]] = []

    def assignment(self, step: int) -> Assignment:
        """Return the assignment of a step; call with ascending steps."""
        while self._scheduled and self._scheduled[0][0] <= step:
            self._current = self._scheduled.popleft()[1]
        return self._current

    def synchronized(self, step: SimulatedStep) -> None:
        """Add a finished step to the history and query the policy.

        Raises
        ------
        ValueError
            If the policy's decision violates the limits.
        """
        first_step = step.step + self._limits.delay
        if self._policy is None or first_step >= self._num_steps:
            return
        self._history.append(_observation(step, step.done_s - self._previous_done_s))
        self._previous_done_s = step.done_s
        decision = self._policy.decide(tuple(self._history), self._latest, self._limits)
        if decision.assignment != self._latest:
            self._check(step.step, decision.assignment)
            self._scheduled.append((first_step, decision.assignment))
            self.decisions.append((step.step, decision))
            self._latest = decision.assignment

    def _check(self, step: int, decided: Assignment) -> None:
        """Check a decision against the limits; only its sum, if the latest assignment also violates them."""
        assert self._policy is not None
        latest = self._latest
        if len(decided.split) != len(latest.split) or sum(decided.split) != sum(latest.split):
            reason = f"a step has {sum(latest.split)} units for {len(latest.split)} trainers"
        elif self._limits.allows(latest) and not self._limits.allows(decided):
            reason = f"the limits are {self._limits}"
        else:
            return
        raise ValueError(f"policy {self._policy.name} decided {decided} at step {step}, but {reason}")


def _observation(step: SimulatedStep, iteration_s: float) -> Observation:
    return Observation(
        step=step.step,
        assignment=step.assignment,
        iteration_s=iteration_s,
        sample_s=tuple(step.sample_s),
        load_s=tuple(step.load_s),
        sample_on_device_s=(0.0,) * len(step.sample_s),
        transfer_s=tuple(step.transfer_s),
        propagate_s=tuple(step.propagate_s),
        synchronize_s=step.synchronize_s,
    )
