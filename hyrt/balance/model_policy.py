"""Policy that fits a performance model to the observed steps and solves it for the best assignment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Decision, Observation

from hyrt.balance.assignments import best_assignment, describe_change
from hyrt.balance.explore import experiment, fewer_shares, is_near, probe
from hyrt.balance.fit import FittedStepModel, fit_step_model, trainer_kinds
from hyrt.balance.stage_times import (
    FIRST_TRAINER,
    ITERATION,
    ObservationHistory,
    group_history,
    medians,
    slowest_stage_s,
)

# A change must promise this relative gain, plus `_GAIN_ERRORS` standard errors of the current iteration.
_MIN_GAIN = 0.02
_GAIN_ERRORS = 2.0
# Additional gain required to move all targets, because predictions far from observations are uncertain.
_FULL_MOVE_GAIN = 0.05
# Additional required gain, as a fraction of the model's mean error on the previous assignments.
_MODEL_ERROR_GAIN = 0.5
_NUM_ERROR_PERIODS = 3
# Minimum gain of a new assignment after this many steps without a change.
_SETTLED_STEPS = 16
_SETTLED_GAIN = 0.1
_HOST_BOUND_FRACTION = 0.95
# Pairs (steps without a change, review interval). The longer an assignment has been stable, the less often it
# is reviewed, because the review dominates the cost of a decision.
_REVIEW_INTERVALS = ((63, 8), (_SETTLED_STEPS, 4), (_SETTLED_STEPS // 2, 2))
# If the model underestimates the iteration time by this fraction, some effect is missing from it.
_MAX_UNDERESTIMATE = 0.15
# A speed oscillates if the log of its running median over `_SMOOTHED` steps rises and falls by this much.
_OSCILLATION_RANGE = 0.4
_SMOOTHED = 3
# Minimum number of steps under the current assignment before the next decision.
_MIN_STEPS = 2
# Devices are the bottleneck if their transfers take this fraction of the slowest stage's time.
_BOTTLENECK_FRACTION = 0.95
# Number of steps at the start of a run in which assignments are explored.
_EXPLORED_STEPS = 24
_FULL_HISTORY = 64


class ModelPolicy:
    """Policy that fits the performance model to the latest steps and switches to the best assignment.

    The work of a share may grow sublinearly with its targets; this growth is fitted to the sampling and
    loading times of all trainers. A trainer's time is linear in that work. A host stage's time is the total
    work multiplied by a function of its threads. Both reproduce the newest steps exactly, and older steps
    determine the slopes. The best assignment is chosen if its gain exceeds the noise. A decision is only made
    after steps under the previous decision. In a run's first steps, the policy explores assignments that the
    model cannot predict. If a device changes its speed, earlier observations are rescaled. If speeds
    oscillate, the assignment does not change.
    """

    name = "model"
    description = (
        "fits the performance model to the latest steps and switches to the assignment that it predicts "
        "to be fastest"
    )

    def decide(
        self, history: Sequence[Observation], present: Assignment, limits: AssignmentLimits
    ) -> Decision:
        """Return the best assignment if its gain exceeds the noise, otherwise the current assignment."""
        stay = Decision(assignment=present)
        is_allowed = limits.allows(present)
        if is_allowed and any(step.assignment != present for step in history[-_MIN_STEPS:]):
            return stay
        if is_allowed and (len(history) < _MIN_STEPS or _is_draining(history, present, limits)):
            return stay
        is_start = len(history) < _FULL_HISTORY
        trial = probe(history, present, limits, is_start=is_start) if is_allowed else None
        if trial is not None:
            return trial
        if is_allowed and _can_wait(history, present):
            return stay
        evidence = group_history(history, limits.delay)
        if slowest_stage_s(evidence.periods[0].seconds) <= 0:
            return stay
        model = fit_step_model(evidence, limits, uses_peers=is_start or bool(evidence.has_changed.any()))
        if (
            is_allowed
            and _is_settled(evidence)
            and model.host_s(present.split, present.threads)
            > _HOST_BOUND_FRACTION * model.iteration_s(present)
        ):
            # Trainers may have drifted since the decision, but the host is the bottleneck: do not revise a
            # decision on less evidence than it was based on.
            return stay
        choice = _choice(model, evidence, present, _without_idle_trainers(history, evidence, present, limits))
        if is_allowed and not _is_worth_it(evidence, model, history, present, choice):
            if len(history) < _EXPLORED_STEPS:
                return experiment(model, evidence, present, limits) or stay
            return stay
        if choice.assignment == present:
            return stay
        if (
            is_allowed
            and len(history) < _EXPLORED_STEPS
            and _underestimate(evidence, limits) > _MAX_UNDERESTIMATE
        ):
            trial = experiment(model, evidence, present, limits, (fewer_shares,))
            if trial is not None:
                return trial
        trainers_s = [
            model.trainer_s(index, units, present.threads.train) for index, units in enumerate(present.split)
        ]
        reason = describe_change(
            present,
            choice.assignment,
            limits.trainers,
            trainers_s,
            model.stages_s(present),
            choice.expected_s,
        )
        return Decision(assignment=choice.assignment, reason=reason, expected_s=choice.expected_s)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Candidate assignment with its expected iteration time and relative gain."""

    assignment: Assignment
    expected_s: float
    gain: float
    is_remembered: bool = False


def _choice(
    model: FittedStepModel, evidence: ObservationHistory, present: Assignment, limits: AssignmentLimits
) -> _Choice:
    """Return the model's optimum, or an earlier assignment whose measured time is better."""
    best = best_assignment(model, present, limits)
    expected_s = model.iteration_s(best)
    choice = _Choice(best, expected_s, model.iteration_s(present) / expected_s - 1)
    present_s = float(evidence.periods[0].seconds[ITERATION])
    if evidence.has_changed.any():
        return choice
    for period in evidence.periods[1:]:
        seconds = float(period.seconds[ITERATION])
        if period.is_past or period.steps[ITERATION] <= _MIN_STEPS or not limits.allows(period.assignment):
            continue
        measured = _Choice(period.assignment, seconds, present_s / seconds - 1, is_remembered=True)
        # Prefer a measured time over a predicted time.
        if is_near(choice.assignment, period.assignment) or measured.gain > choice.gain:
            choice = measured
    return choice


def _is_draining(history: Sequence[Observation], present: Assignment, limits: AssignmentLimits) -> bool:
    """Return whether steps of the previous assignment may still be in transfer.

    Up to `delay` steps are queued for devices that are the bottleneck. If several devices share a link, the
    time of one device can be measured only after these steps.
    """
    newest = next((n for n, step in enumerate(reversed(history)) if step.assignment != present), 0)
    if not newest or newest >= limits.delay + _MIN_STEPS:
        return False
    before = history[-newest - 1]
    kinds = trainer_kinds(limits)
    stopped = {
        kind
        for kind, units, old_units in zip(kinds, present.split, before.assignment.split, strict=True)
        if old_units and not units
    }
    slowest_s = max(before.transfer_s)
    remaining = {kind for kind, units in zip(kinds, present.split, strict=True) if units}
    return bool(stopped & remaining) and slowest_s >= _BOTTLENECK_FRACTION * max(
        *before.propagate_s, sum(before.sample_s), sum(before.load_s)
    )


def _can_wait(history: Sequence[Observation], present: Assignment) -> bool:
    """Return whether the assignment is stable and not due for review at this step."""
    stable = next((n for n, step in enumerate(reversed(history)) if step.assignment != present), len(history))
    # Review interval for this number of steps without a change.
    interval = next((interval for steps, interval in _REVIEW_INTERVALS if stable > steps), 1)
    return interval > 1 and history[-1].step // interval == history[-2].step // interval


def _is_settled(evidence: ObservationHistory) -> bool:
    """Return whether the assignment has been used for many steps in which no speed changed."""
    return float(evidence.periods[0].steps.max()) > _SETTLED_STEPS and not evidence.has_changed.any()


def _without_idle_trainers(
    history: Sequence[Observation],
    evidence: ObservationHistory,
    present: Assignment,
    limits: AssignmentLimits,
) -> AssignmentLimits:
    """Return the limits; in a settled run, without the trainers that have no targets.

    The observations of these trainers are outdated.
    """
    if len(history) < _FULL_HISTORY or not _is_settled(evidence) or not limits.allows(present):
        return limits
    limits_if_settled = tuple(
        limits_if_settled if units or is_host else 0
        for limits_if_settled, units, is_host in zip(
            limits.max_units, present.split, limits.is_host, strict=True
        )
    )
    return replace(limits, max_units=limits_if_settled)


def _is_worth_it(
    evidence: ObservationHistory,
    model: FittedStepModel,
    history: Sequence[Observation],
    present: Assignment,
    choice: _Choice,
) -> bool:
    """Return whether the gain of a choice exceeds the noise of the slowest stages."""
    newest = evidence.periods[0]
    is_critical = newest.seconds > 0.85 * max(
        newest.seconds[:ITERATION].max(), newest.seconds[FIRST_TRAINER:].max()
    )
    is_critical[ITERATION] = choice.is_remembered
    error = float(np.max(evidence.noise[is_critical] / np.sqrt(newest.steps[is_critical])))
    required_gain = _MIN_GAIN
    if not choice.is_remembered:
        required_gain += _FULL_MOVE_GAIN * _moved_fraction(present, choice.assignment)
        if history[0].step + _EXPLORED_STEPS < history[-1].step:
            required_gain += _MODEL_ERROR_GAIN * _model_error(model, evidence)
    if _is_settled(evidence):
        required_gain = _SETTLED_GAIN
    if choice.gain <= required_gain + _GAIN_ERRORS * error:
        return False
    return not is_oscillating(history, model)


def _model_error(model: FittedStepModel, evidence: ObservationHistory) -> float:
    """Return the model's mean relative error on the previous assignments."""
    older = [
        period
        for period in evidence.periods[1 : 1 + _NUM_ERROR_PERIODS]
        if not period.is_past and slowest_stage_s(period.seconds) > 0
    ]
    if not older:
        return 0.0
    errors = [
        abs(math.log(slowest_stage_s(period.seconds) / model.iteration_s(period.assignment)))
        for period in older
    ]
    return sum(errors) / len(errors)


def _underestimate(evidence: ObservationHistory, limits: AssignmentLimits) -> float:
    """Return by which fraction the iteration exceeds the prediction from earlier periods."""
    if len(evidence.periods) < 2:
        return 0.0
    newest = evidence.periods[0]
    before = fit_step_model(replace(evidence, periods=evidence.periods[1:]), limits)
    return float(newest.seconds[ITERATION]) / before.iteration_s(newest.assignment) - 1


def _moved_fraction(before: Assignment, after: Assignment) -> float:
    """Return the fraction of the targets that move to another trainer."""
    pairs = zip(before.split, after.split, strict=True)
    return sum(abs(one - other) for one, other in pairs) / 2 / sum(before.split)


def is_oscillating(history: Sequence[Observation], model: FittedStepModel) -> bool:
    """Return whether a trainer's speed oscillates, in which case a new assignment does not pay off."""
    # Skip the exploration: shares vary so much that model errors look like speed changes.
    explored = [step for step in history if step.step >= _EXPLORED_STEPS]
    if len(explored) < 2 * _SMOOTHED:
        return False
    split = np.array([step.assignment.split for step in explored], dtype=np.float64)
    seconds = np.array([step.propagate_s for step in explored])
    train = np.array([model.train_curve.relative_time(step.assignment.threads.train) for step in explored])
    for trainer, line in enumerate(model.propagate):
        busy = split[:, trainer] > 0
        if line is None or busy.sum() < 2 * _SMOOTHED:
            continue
        work = line.growth.work_of_all(split[:, trainer])
        expected = line.launch_s + line.unit_s * work * (train if model.is_host[trainer] else 1.0)
        times = np.log(np.maximum(seconds[busy, trainer], 1e-12) / expected[busy])
        if float(times.max() - times.min()) < _OSCILLATION_RANGE:
            continue
        smooth = medians(
            np.array([times[start : len(times) - _SMOOTHED + 1 + start] for start in range(_SMOOTHED)])
        )
        low, high = float(smooth.min()), float(smooth.max())
        if high - low < _OSCILLATION_RANGE:
            continue
        # Apply hysteresis: values in the middle third do not count as a change.
        level = (smooth - low) / (high - low)
        sides = level[(level < 1 / 3) | (level > 2 / 3)] > 0.5
        if np.count_nonzero(np.diff(sides)) >= 2:
            return True
    return False
