"""Resource manager, which observes the steps of a run and lets a policy move targets and threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Observation, Policy, Threads

from hyrt.balance.assignments import THREAD_STAGES
from hyrt.balance.registry import DEFAULT_POLICY, create_policy
from hyrt.config import Config
from hyrt.errors import StageError, describe_error
from hyrt.pipeline.stages import Stages
from hyrt.pipeline.work_items import StepTimes, StepWork
from hyrt.telemetry.events import AssignmentChanged


def assignment_state(stages: Stages, cores: int) -> dict[str, Any] | None:
    """Return the policy's assignments as plain values for a checkpoint, or None if a trainer was lost.

    If a checkpoint has no assignments, the resumed run retries the lost trainer.
    """
    if any(trainer.lost is not None for trainer in stages.trainers):
        return None
    return {
        "trainers": [trainer.name for trainer in stages.trainers],
        "most_units": [trainer.max_units for trainer in stages.trainers],
        "cores": cores,
        "schedule": stages.schedule.state(),
    }


def restore_assignments(
    state: Mapping[str, Any], stages: Stages, step: int, cores: int, fixed_threads: Mapping[str, int]
) -> bool:
    """Restore saved assignments from step `step` on; return False if they do not fit.

    `state` is a result of `assignment_state`. It fits if it has the same trainers and units per step, which
    depend on the number of ranks. If the number of `cores` has changed, the initial threads are used.
    `fixed_threads` contains the threads that the settings fix per stage (sample, load, train), or 0.
    """
    if state["trainers"] != [trainer.name for trainer in stages.trainers]:
        return False
    units = sum(stages.schedule.latest.split)
    if any(sum(split) != units for _, split, _ in state["schedule"]):
        return False
    start = stages.schedule.latest.threads
    if state["cores"] != cores:
        fixed_threads = {stage: getattr(start, stage) for stage in THREAD_STAGES}
    schedule = [
        (
            first,
            split,
            [fixed_threads[stage] or count for stage, count in zip(THREAD_STAGES, counts, strict=True)],
        )
        for first, split, counts in state["schedule"]
    ]
    stages.schedule.restore(schedule, step)
    for trainer, limit in zip(stages.trainers, state["most_units"], strict=True):
        trainer.max_units = limit
    return True


_HISTORY = 64
# If the number of units varies, minimum units of a representative step, relative to the largest step.
_MIN_UNITS_FRACTION = 0.9


def configured_policy(config: Config, *, simulated: bool, moves: bool = True) -> Policy:
    """Return the configured policy. With `auto`, a split that the settings define never changes.

    With `auto`, the split never changes either if a device is simulated (its times are from a virtual clock),
    if a full graph is trained (there is nothing to move), or without `moves` (only one assignment is
    possible).
    """
    name = config.balance.policy
    if name != "auto":
        return create_policy(name)
    is_static = config.has_explicit_split or simulated or config.sampler.is_full_graph or not moves
    return create_policy("static" if is_static else DEFAULT_POLICY)


class ResourceManager:
    """Controller that passes measurements of the latest steps to a policy and applies its decisions.

    If `start` has more threads than there are cores, the stages share the cores. `fixed_threads` contains the
    threads that the settings fix per stage (sample, load, train), or 0. `last_step` counts from 0. `emit` is
    called for every decision.
    """

    def __init__(
        self,
        policy: Policy,
        stages: Stages,
        *,
        cores: int,
        start: Threads,
        fixed_threads: Mapping[str, int],
        steps_per_epoch: int,
        last_step: int,
        emit: Callable[[AssignmentChanged], None],
    ) -> None:
        self._policy = policy
        self._stages = stages
        self._fixed_threads = {stage: count for stage, count in fixed_threads.items() if count}
        self._emit = emit
        self._history: deque[Observation] = deque(maxlen=_HISTORY)
        self._num_units = 0
        # With several processes, each trains on the targets of its partition, whose number varies between
        # steps.
        self._min_units_fraction = _MIN_UNITS_FRACTION if stages.is_part_of_steps else 1.0
        # Ignore the first step, in which kernels are compiled and memory pages are first touched.
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
        """Record a synchronized step and apply the policy's decision to steps that are not yet split.

        Raises StageError if the policy fails, or if its decision violates the limits.
        """
        schedule = self._stages.schedule
        if not self._is_usual(work) or work.step + schedule.ahead > self._last_step:
            return
        self._history.append(to_observation(work.step, schedule.of(work.step), times))
        present, limits = schedule.latest, self._limits()
        try:
            decision = self._policy.decide(tuple(self._history), present, limits)
        except Exception as error:
            raise StageError(
                f"error in policy {self._policy.name} at step {work.step}: {describe_error(error)}"
            ) from error
        after = self._with_fixed_threads(decision.assignment)
        if after == present:
            return
        _check(self._policy.name, work.step, present, after, limits)
        first = schedule.change(work.step, after)
        self._emit(
            AssignmentChanged(
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
        """Ignore the steps in flight, because the consumer does other work before it takes step `step`.

        In epochs of only a few steps, they are not ignored, because no steps would remain.
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
            # Skip the last step of an epoch, which may have fewer units.
            and num_units >= self._min_units_fraction * self._num_units
            and not any(share.is_retry for share in work.shares)
        )

    def _limits(self) -> AssignmentLimits:
        trainers = self._stages.trainers
        total = sum(self._stages.schedule.latest.split)
        return AssignmentLimits(
            trainers=tuple(trainer.name for trainer in trainers),
            is_host=tuple(trainer.resize is not None for trainer in trainers),
            max_units=tuple(
                0
                if trainer.lost is not None
                else total
                if trainer.max_units is None
                else min(trainer.max_units, total)
                for trainer in trainers
            ),
            cores=self._cores,
            delay=self._stages.schedule.ahead,
            threads_are_shared=self._threads_are_shared,
            samples_on_device=tuple(trainer.hops is not None for trainer in trainers),
        )

    def _with_fixed_threads(self, assignment: Assignment) -> Assignment:
        """Return the assignment with its threads replaced by the fixed ones of the settings."""
        if not self._fixed_threads:
            return assignment
        return replace(assignment, threads=replace(assignment.threads, **self._fixed_threads))


def to_observation(step: int, assignment: Assignment, times: StepTimes) -> Observation:
    """Convert the measured times of step `step` (counted from 0) to an observation."""
    seconds = times.trainers_s
    return Observation(
        step=step,
        assignment=assignment,
        iteration_s=times.iteration_s,
        sample_s=seconds["sample"],
        load_s=seconds["load"],
        sample_on_device_s=seconds["sample_on_device"],
        transfer_s=seconds["transfer"],
        propagate_s=seconds["propagate"],
        synchronize_s=times.stage_s["synchronize"] + max(seconds["update"]),
    )


def _check(name: str, step: int, present: Assignment, after: Assignment, limits: AssignmentLimits) -> None:
    """Check that a decision does not change the number of units and respects the limits. The limits are not
    checked if the current assignment violates them.
    """
    reason = ""
    if len(after.split) != len(present.split) or sum(after.split) != sum(present.split):
        reason = f"a step has {sum(present.split)} units for {len(present.split)} trainers"
    elif limits.allows(present) and not limits.allows(after):
        reason = f"the limits are {limits}"
    if reason:
        raise StageError(f"policy {name} decided {after} at step {step}, but {reason}")
