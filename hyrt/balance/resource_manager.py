"""Resource manager: observes the steps of a run and lets a policy move targets and threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from hyrt_perfmodel.assignment import Assignment, Threads
from hyrt_perfmodel.policy import AssignmentLimits, Observation, Policy

from hyrt.balance.registry import default_policy_name, policy
from hyrt.config import Config
from hyrt.errors import StageFailure, describe
from hyrt.observe.events import Balanced
from hyrt.pipeline.shares import StepTimes, StepWork
from hyrt.pipeline.stages import Stages

_HISTORY = 64
# Minimum units of a usual step, relative to the largest step, if the number of units varies.
_MIN_UNITS_FRACTION = 0.9


def configured_policy(config: Config, *, simulated: bool, moves: bool = True) -> Policy:
    """Return the configured policy; `auto` keeps a split that the settings define.

    `auto` also keeps the split if a device is simulated, because its times are those of a virtual clock while
    other devices use wall time; in full-graph training, which has nothing to move; and without `moves`,
    because one trainer on one core has a single possible assignment.
    """
    name = config.balance.policy
    if name != "auto":
        return policy(name)
    is_static = config.gives_split or simulated or config.sampler.whole_graph or not moves
    return policy("static" if is_static else default_policy_name)


class ResourceManager:
    """Controller that passes measurements of the latest steps to a policy and schedules its decisions.

    Parameters
    ----------
    policy
        The policy that decides.
    stages
        Stages that are measured and whose schedule is changed.
    cores
        Cores available to this process.
    start
        Initial threads: if there are more threads than cores, the stages share the cores.
    given
        Threads fixed by the settings per stage (sample, load, train); 0 if not fixed.
    steps_per_epoch, last_step
        Steps per epoch, and the run's last step, counted from 0.
    emit
        Callback for every decision.
    """

    def __init__(
        self,
        policy: Policy,
        stages: Stages,
        *,
        cores: int,
        start: Threads,
        given: Mapping[str, int],
        steps_per_epoch: int,
        last_step: int,
        emit: Callable[[Balanced], None],
    ) -> None:
        self._policy = policy
        self._stages = stages
        self._fixed_threads = {stage: count for stage, count in given.items() if count}
        self._emit = emit
        self._history: deque[Observation] = deque(maxlen=_HISTORY)
        self._num_units = 0
        # With several processes, each trains the targets of its partition, so the number of units varies
        # between steps.
        self._min_units_fraction = _MIN_UNITS_FRACTION if stages.is_part_of_steps else 1.0
        # The first step compiles kernels and faults in memory.
        self._ignored_until: int | None = None
        self._steps_per_epoch = steps_per_epoch
        self._last_step = last_step
        counts = [start.sample, start.load]
        if any(trainer.resize is not None for trainer in stages.trainers):
            counts.append(start.train)
        self._cores = max(cores, *counts)
        self._threads_are_shared = sum(counts) > cores

    @property
    def policy_name(self) -> str:
        return self._policy.name

    def observe(self, work: StepWork, times: StepTimes) -> None:
        """Add a synchronized step to the history and apply the policy's decision to steps that are not split
        yet.

        Raises
        ------
        StageFailure
            If the policy fails, or its decision violates the limits.
        """
        schedule = self._stages.schedule
        if not self._is_usual(work) or work.step + schedule.ahead > self._last_step:
            return
        self._history.append(observation(work.step, schedule.of(work.step), times))
        present, limits = schedule.latest, self._limits()
        try:
            decision = self._policy.decide(tuple(self._history), present, limits)
        except Exception as error:
            raise StageFailure(
                f"error in policy {self._policy.name} at step {work.step}: {describe(error)}"
            ) from error
        after = self._with_fixed_threads(decision.assignment)
        if after == present:
            return
        _check(self._policy.name, work.step, present, after, limits)
        first = schedule.change(work.step, after)
        self._emit(
            Balanced(
                step=work.step + 1,
                acts_from=first,
                policy=self._policy.name,
                split_before=self._stages.named_split(present),
                split=self._stages.named_split(after),
                threads_before=present.threads.by_name(),
                threads=after.threads.by_name(),
                reason=decision.reason,
                expected_s=decision.expected_s,
                is_trial=decision.is_trial,
            )
        )

    def pause(self, step: int) -> None:
        """Ignore the steps in flight while the consumer does other work before it takes `step`.

        Epochs of only a few steps are not ignored, because no steps would be left.
        """
        if self._steps_per_epoch > 2 * self._stages.schedule.ahead:
            self._ignored_until = step + self._stages.schedule.ahead

    def _is_usual(self, work: StepWork) -> bool:
        """Return whether a step is representative of its assignment."""
        num_units = sum(len(share.units) for share in work.shares)
        self._num_units = max(self._num_units, num_units)
        if self._ignored_until is None:
            self._ignored_until = work.step + 1
        return (
            work.step >= self._ignored_until
            # The last step of an epoch is short.
            and num_units >= self._min_units_fraction * self._num_units
            and not any(share.is_again for share in work.shares)
        )

    def _limits(self) -> AssignmentLimits:
        trainers = self._stages.trainers
        total = sum(self._stages.schedule.latest.split)
        return AssignmentLimits(
            trainers=tuple(trainer.name for trainer in trainers),
            is_host=tuple(trainer.resize is not None for trainer in trainers),
            most_units=tuple(
                0
                if trainer.lost is not None
                else total
                if trainer.most_units is None
                else min(trainer.most_units, total)
                for trainer in trainers
            ),
            cores=self._cores,
            delay=self._stages.schedule.ahead,
            threads_are_shared=self._threads_are_shared,
            samples_on_device=tuple(trainer.hops is not None for trainer in trainers),
        )

    def _with_fixed_threads(self, assignment: Assignment) -> Assignment:
        """Return the assignment with the threads that the settings fix."""
        if not self._fixed_threads:
            return assignment
        return replace(assignment, threads=replace(assignment.threads, **self._fixed_threads))


def observation(step: int, ran: Assignment, times: StepTimes) -> Observation:
    """Convert a step's measured times to an observation.

    Parameters
    ----------
    step
        Step number, counted from 0.
    ran
        Assignment of the step.
    times
        Measured times of the step.
    """
    seconds = times.trainers_s
    return Observation(
        step=step,
        assignment=ran,
        iteration_s=times.iteration_s,
        sample_s=seconds["sample"],
        load_s=seconds["load"],
        sample_on_device_s=seconds["sample_on_device"],
        transfer_s=seconds["transfer"],
        propagate_s=seconds["propagate"],
        synchronize_s=times.stage_s["synchronize"] + max(seconds["update"]),
    )


def _check(name: str, step: int, present: Assignment, after: Assignment, limits: AssignmentLimits) -> None:
    """Check a decision against the limits; only its sum, if the current assignment also violates them."""
    reason = ""
    if len(after.split) != len(present.split) or sum(after.split) != sum(present.split):
        reason = f"a step has {sum(present.split)} units for {len(present.split)} trainers"
    elif limits.allows(present) and not limits.allows(after):
        reason = f"the limits are {limits}"
    if reason:
        raise StageFailure(f"policy {name} decided {after} at step {step}, but {reason}")
