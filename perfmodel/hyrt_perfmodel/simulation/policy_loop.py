"""A policy in the loop of a simulated run."""

from __future__ import annotations

from collections import deque

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.policy import AssignmentLimits, Decision, Observation, Policy
from hyrt_perfmodel.simulation.simulated_step import SimulatedStep

_HISTORY = 64


class PolicyLoop:
    """Asks a policy after each step and schedules what it decides.

    Parameters
    ----------
    policy
        None leaves the assignment as it is.
    start
        The assignment of the first steps.
    limits
        Told to the policy and enforced; a decision acts `limits.delay` steps later.
    num_steps
        Steps of the run: nobody is asked about steps beyond it.
    """

    def __init__(
        self, policy: Policy | None, start: Assignment, limits: AssignmentLimits, num_steps: int
    ) -> None:
        self._policy, self._limits, self._num_steps = policy, limits, num_steps
        self._acting = self._latest = start
        self._scheduled: deque[tuple[int, Assignment]] = deque()
        self._history: deque[Observation] = deque(maxlen=_HISTORY)
        self._before_s = 0.0
        self.decisions: list[tuple[int, Decision]] = []

    def assignment(self, step: int) -> Assignment:
        """What a step runs under; ask for steps in order."""
        while self._scheduled and self._scheduled[0][0] <= step:
            self._acting = self._scheduled.popleft()[1]
        return self._acting

    def synchronized(self, step: SimulatedStep) -> None:
        """Take a step into account.

        Raises
        ------
        ValueError
            If the policy decides what the limits do not allow.
        """
        acts_on = step.step + self._limits.delay
        if self._policy is None or acts_on >= self._num_steps:
            return
        self._history.append(_observation(step, step.done_s - self._before_s))
        self._before_s = step.done_s
        decision = self._policy.decide(tuple(self._history), self._latest, self._limits)
        if decision.assignment != self._latest:
            self._check(step.step, decision.assignment)
            self._scheduled.append((acts_on, decision.assignment))
            self.decisions.append((step.step, decision))
            self._latest = decision.assignment

    def _check(self, step: int, after: Assignment) -> None:
        """Where the latest assignment is outside the limits too, only its sum is held to."""
        assert self._policy is not None
        before = self._latest
        if len(after.split) != len(before.split) or sum(after.split) != sum(before.split):
            wrong = f"a step has {sum(before.split)} units for {len(before.split)} trainers"
        elif self._limits.allows(before) and not self._limits.allows(after):
            wrong = f"the limits are {self._limits}"
        else:
            return
        raise ValueError(f"policy {self._policy.name} decided {after} at step {step}, but {wrong}")


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
