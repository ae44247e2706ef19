"""The policy that fits the performance model to what it sees and solves it for the best assignment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.policy import AssignmentLimits, Decision, Observation

from hyrt.balance.fitted.evidence import FIRST_TRAINER, ITERATION, Evidence, gather, medians, slowest
from hyrt.balance.fitted.explore import experiment, is_near, lighter, probe
from hyrt.balance.fitted.fit import Fit, fit, kinds_of
from hyrt.balance.fitted.solve import best_assignment
from hyrt.balance.reason import change_in_words

# A change must promise this much, and this many standard errors of the present iteration.
_LEAST_GAIN = 0.02
_GAIN_ERRORS = 2.0
# Moving all targets must promise this much more: the further from what was seen, the less sure is the model.
_GAIN_OF_ALL = 0.05
# And this part of how far the model is off for the last so many assignments.
_GAIN_OF_MISFIT = 0.5
_JUDGED_PERIODS = 3
# After so many steps without a change, one that is not new must promise more.
_SETTLED_STEPS = 16
_SETTLED_GAIN = 0.1
_HOST_PART = 0.95
# After so many steps without a change, it looks again every so many: a look is most of what a decision costs.
_LOOK_STEPS = ((63, 8), (_SETTLED_STEPS, 4), (_SETTLED_STEPS // 2, 2))
# A model that promised an iteration so much shorter than it is lacks something.
_SURPRISE = 0.15
# A speed comes and goes where its logarithm, a median of so many steps, has been this far up and down.
_RESTLESS_RANGE = 0.4
_SMOOTHED = 3
# Steps under the present assignment before the next decision.
_LEAST_STEPS = 2
# The devices that are waited for have the slowest transfers, at least so far.
_WAITED_PART = 0.95
# What a run can do is explored in its first steps.
_EXPLORED_STEPS = 24
_FULL_HISTORY = 64


class ModelPolicy:
    """Fits the performance model to the latest steps, and moves to the assignment that it finds best.

    How the work of a share grows with its targets, which need not be in proportion, is learned from the times
    of all trainers' sampling and loading. A trainer's time is a line over that work, a host stage's their sum
    times a curve over the threads; both go exactly through what the newest steps took, and older steps tell
    how steep they are. The assignment that minimises the fitted iteration is taken when it promises more than
    noise does. Only steps that ran under the last decision count for the next one. In a run's first steps
    assignments are tried that the model cannot judge. A change of a device's speed rescales what was seen
    before it; where speeds come and go, nothing moves.
    """

    name = "model"
    description = "fits the performance model to the latest steps and moves to the assignment it finds best"

    def decide(
        self, history: Sequence[Observation], present: Assignment, limits: AssignmentLimits
    ) -> Decision:
        """The best assignment, where it promises more than noise; else the present one."""
        stay = Decision(assignment=present)
        is_allowed = limits.allows(present)
        if is_allowed and any(step.assignment != present for step in history[-_LEAST_STEPS:]):
            return stay
        if is_allowed and (len(history) < _LEAST_STEPS or _still_drains(history, present, limits)):
            return stay
        is_start = len(history) < _FULL_HISTORY
        found = probe(history, present, limits, is_start=is_start) if is_allowed else None
        if found is not None:
            return found
        if is_allowed and _can_wait(history, present):
            return stay
        evidence = gather(history, limits.delay)
        if slowest(evidence.periods[0].seconds) <= 0:
            return stay
        model = fit(evidence, limits, knows_mates=is_start or bool(evidence.changed.any()))
        if (
            is_allowed
            and _is_settled(evidence)
            and model.host_s(present.split, present.threads) > _HOST_PART * model.iteration_s(present)
        ):
            # What was decided with more evidence is not decided anew with less; trainers may drift apart, but
            # it is not they that are slow.
            return stay
        choice = _choice(model, evidence, present, _without_idle(history, evidence, present, limits))
        if is_allowed and not _is_worth_it(evidence, model, history, present, choice):
            if len(history) < _EXPLORED_STEPS:
                return experiment(model, evidence, present, limits) or stay
            return stay
        if choice.assignment == present:
            return stay
        if is_allowed and len(history) < _EXPLORED_STEPS and _surprise(evidence, limits) > _SURPRISE:
            found = experiment(model, evidence, present, limits, (lighter,))
            if found is not None:
                return found
        trainers_s = [
            model.trainer_s(index, units, present.threads.train) for index, units in enumerate(present.split)
        ]
        reason = change_in_words(
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
    """An assignment to move to, the iteration expected from it, and what it gains, as a part of that."""

    assignment: Assignment
    expected_s: float
    gain: float
    is_remembered: bool = False


def _choice(model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits) -> _Choice:
    """What the model finds best, or an older assignment that was measured to be better."""
    best = best_assignment(model, present, limits)
    expected_s = model.iteration_s(best)
    choice = _Choice(best, expected_s, model.iteration_s(present) / expected_s - 1)
    present_s = float(evidence.periods[0].seconds[ITERATION])
    if evidence.changed.any():
        return choice
    for period in evidence.periods[1:]:
        seconds = float(period.seconds[ITERATION])
        if period.is_past or period.steps[ITERATION] <= _LEAST_STEPS or not limits.allows(period.assignment):
            continue
        remembered = _Choice(period.assignment, seconds, present_s / seconds - 1, is_remembered=True)
        # What was measured counts, not what the model makes of it.
        if is_near(choice.assignment, period.assignment) or remembered.gain > choice.gain:
            choice = remembered
    return choice


def _still_drains(history: Sequence[Observation], present: Assignment, limits: AssignmentLimits) -> bool:
    """Whether transfers of the steps before may still be under way beside those of the present assignment.

    Where an iteration waits for several devices of a kind, as many steps are queued before them as may be in
    flight. If they share a link, what one takes that is left alone shows only when these have come through.
    """
    newest = next((n for n, step in enumerate(reversed(history)) if step.assignment != present), 0)
    if not newest or newest >= limits.delay + _LEAST_STEPS:
        return False
    before = history[-newest - 1]
    kinds = kinds_of(limits)
    stops = {
        kind
        for kind, units, old in zip(kinds, present.split, before.assignment.split, strict=True)
        if old and not units
    }
    slowest_s = max(before.transfer_s)
    stays = {kind for kind, units in zip(kinds, present.split, strict=True) if units}
    return bool(stops & stays) and slowest_s >= _WAITED_PART * max(
        *before.propagate_s, sum(before.sample_s), sum(before.load_s)
    )


def _can_wait(history: Sequence[Observation], present: Assignment) -> bool:
    """Whether the assignment has long been there and this is not one of the steps that look at it again."""
    stable = next((n for n, step in enumerate(reversed(history)) if step.assignment != present), len(history))
    # How long it has been there, and how often it is then looked at again.
    every = next((every for steps, every in _LOOK_STEPS if stable > steps), 1)
    return every > 1 and history[-1].step // every == history[-2].step // every


def _is_settled(evidence: Evidence) -> bool:
    """Whether the present assignment has long been there and nothing has changed its speed."""
    return float(evidence.periods[0].steps.max()) > _SETTLED_STEPS and not evidence.changed.any()


def _without_idle(
    history: Sequence[Observation], evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> AssignmentLimits:
    """What a settled run may change: what was once seen of trainers without targets is mostly forgotten."""
    if len(history) < _FULL_HISTORY or not _is_settled(evidence) or not limits.allows(present):
        return limits
    most = tuple(
        most if units or is_host else 0
        for most, units, is_host in zip(limits.most_units, present.split, limits.is_host, strict=True)
    )
    return replace(limits, most_units=most)


def _is_worth_it(
    evidence: Evidence, model: Fit, history: Sequence[Observation], present: Assignment, choice: _Choice
) -> bool:
    """Whether the gain is more than noise in the slowest stage may be."""
    newest = evidence.periods[0]
    near = newest.seconds > 0.85 * max(newest.seconds[:ITERATION].max(), newest.seconds[FIRST_TRAINER:].max())
    near[ITERATION] = choice.is_remembered
    error = float(np.max(evidence.noise[near] / np.sqrt(newest.steps[near])))
    wanted = _LEAST_GAIN
    if not choice.is_remembered:
        wanted += _GAIN_OF_ALL * _moved(present, choice.assignment)
        if history[0].step + _EXPLORED_STEPS < history[-1].step:
            wanted += _GAIN_OF_MISFIT * _misfit(model, evidence)
    if _is_settled(evidence):
        wanted = _SETTLED_GAIN
    if choice.gain <= wanted + _GAIN_ERRORS * error:
        return False
    return not is_restless(history, model)


def _misfit(model: Fit, evidence: Evidence) -> float:
    """How far the model is off, relatively, for the assignments before the present one."""
    older = [
        period
        for period in evidence.periods[1 : 1 + _JUDGED_PERIODS]
        if not period.is_past and slowest(period.seconds) > 0
    ]
    if not older:
        return 0.0
    errors = [
        abs(math.log(slowest(period.seconds) / model.iteration_s(period.assignment))) for period in older
    ]
    return sum(errors) / len(errors)


def _surprise(evidence: Evidence, limits: AssignmentLimits) -> float:
    """How far the present iteration is above what the periods before it promise, relatively."""
    if len(evidence.periods) < 2:
        return 0.0
    newest = evidence.periods[0]
    before = fit(replace(evidence, periods=evidence.periods[1:]), limits)
    return float(newest.seconds[ITERATION]) / before.iteration_s(newest.assignment) - 1


def _moved(before: Assignment, after: Assignment) -> float:
    """Part of the targets that another trainer gets."""
    pairs = zip(before.split, after.split, strict=True)
    return sum(abs(one - other) for one, other in pairs) / 2 / sum(before.split)


def is_restless(history: Sequence[Observation], model: Fit) -> bool:
    """Whether a trainer's speed has changed and changed back: what following it gains is lost again."""
    # While a run explores, sizes are so different that the model's own errors look like changes.
    known = [step for step in history if step.step >= _EXPLORED_STEPS]
    if len(known) < 2 * _SMOOTHED:
        return False
    split = np.array([step.assignment.split for step in known], dtype=np.float64)
    seconds = np.array([step.propagate_s for step in known])
    train = np.array([model.train_curve.at(step.assignment.threads.train) for step in known])
    for trainer, line in enumerate(model.propagate):
        busy = split[:, trainer] > 0
        if line is None or busy.sum() < 2 * _SMOOTHED:
            continue
        work = line.growth.of_all(split[:, trainer])
        expected = line.launch_s + line.unit_s * work * (train if model.is_host[trainer] else 1.0)
        times = np.log(np.maximum(seconds[busy, trainer], 1e-12) / expected[busy])
        if float(times.max() - times.min()) < _RESTLESS_RANGE:
            continue
        smooth = medians(np.array([times[at : len(times) - _SMOOTHED + 1 + at] for at in range(_SMOOTHED)]))
        low, high = float(smooth.min()), float(smooth.max())
        if high - low < _RESTLESS_RANGE:
            continue
        # Between a third and two thirds of the way, it is where it was.
        part = (smooth - low) / (high - low)
        sides = part[(part < 1 / 3) | (part > 2 / 3)] > 0.5
        if np.count_nonzero(np.diff(sides)) >= 2:
            return True
    return False
