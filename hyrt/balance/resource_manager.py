"""The resource manager: watches the steps of a run and lets a policy move targets and threads."""

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
# Of the most units of a step, those that a usual one has, where they vary.
_LEAST_PART = 0.9


def configured_policy(config: Config, *, simulated: bool, moves: bool = True) -> Policy:
    """The policy that the settings ask for; `auto` leaves a split alone that they give.

    So it does where a device is simulated: its times are those of a virtual clock, beside others' on the
    wall. Of steps of the whole graph there is nothing to move, and neither is there without `moves`: one
    trainer on one core has a single assignment.
    """
    chosen = config.balance.policy
    if chosen != "auto":
        return policy(chosen)
    stays = config.gives_split or simulated or config.sampler.whole_graph or not moves
    return policy("static" if stays else default_policy_name)


class ResourceManager:
    """Hands a policy what the latest steps took, and schedules what it decides.

    Parameters
    ----------
    policy
        The policy that decides.
    stages
        The stages whose steps it watches and whose schedule it changes.
    cores
        The cores that this process may use.
    start
        Threads that the run starts with: where they are more than the cores, the stages share the cores.
    given
        Threads of the settings by stage (sample, load, train), which stay; 0 for those that may change.
    steps_per_epoch, last_step
        The length of an epoch, and the run's last step, counted from 0.
    emit
        Called with every decision.
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
        self._given = {stage: count for stage, count in given.items() if count}
        self._emit = emit
        self._history: deque[Observation] = deque(maxlen=_HISTORY)
        self._num_units = 0
        # Among several processes, each trains what is at home there: no two steps have as many units.
        self._least_part = _LEAST_PART if stages.is_part_of_steps else 1.0
        # The first step compiles kernels and touches memory for the first time.
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
        """Take a synchronized step into account; steps that are not cut yet change if the policy says so.

        Raises
        ------
        StageFailure
            If the policy fails, or decides what the limits do not allow.
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
        after = self._with_given(decision.assignment)
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
        """Leave out the steps in flight while the consumer does something else before it takes `step`.

        In epochs of a few steps nothing would be left.
        """
        if self._steps_per_epoch > 2 * self._stages.schedule.ahead:
            self._ignored_until = step + self._stages.schedule.ahead

    def _is_usual(self, work: StepWork) -> bool:
        """Whether a step says something of the assignment it ran under."""
        num_units = sum(len(share.units) for share in work.shares)
        self._num_units = max(self._num_units, num_units)
        if self._ignored_until is None:
            self._ignored_until = work.step + 1
        return (
            work.step >= self._ignored_until
            # The last step of an epoch is short.
            and num_units >= self._least_part * self._num_units
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

    def _with_given(self, assignment: Assignment) -> Assignment:
        """Without a change of threads that the settings give."""
        if not self._given:
            return assignment
        return replace(assignment, threads=replace(assignment.threads, **self._given))


def observation(step: int, ran: Assignment, times: StepTimes) -> Observation:
    """What a step took, trainer by trainer.

    Parameters
    ----------
    step
        The step, counted from 0.
    ran
        The assignment it ran under.
    times
        The times that the step took.
    """
    of = times.trainers_s
    return Observation(
        step=step,
        assignment=ran,
        iteration_s=times.iteration_s,
        sample_s=of["sample"],
        load_s=of["load"],
        sample_on_device_s=of["sample_on_device"],
        transfer_s=of["transfer"],
        propagate_s=of["propagate"],
        synchronize_s=times.stage_s["synchronize"] + max(of["update"]),
    )


def _check(name: str, step: int, present: Assignment, after: Assignment, limits: AssignmentLimits) -> None:
    """Refuse what no policy may decide; if the present one is outside the limits too, only a changed sum."""
    wrong = ""
    if len(after.split) != len(present.split) or sum(after.split) != sum(present.split):
        wrong = f"a step has {sum(present.split)} units for {len(present.split)} trainers"
    elif limits.allows(present) and not limits.allows(after):
        wrong = f"the limits are {limits}"
    if wrong:
        raise StageFailure(f"policy {name} decided {after} at step {step}, but {wrong}")
