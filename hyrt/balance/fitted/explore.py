"""Moves made to learn something: what an unknown trainer takes, or whether the host's stages get shorter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.policy import AssignmentLimits, Decision, Observation

from hyrt.balance.fitted.evidence import ITERATION, Evidence
from hyrt.balance.fitted.fit import Fit, kinds_of
from hyrt.balance.fitted.solve import whole, within_capacities
from hyrt.balance.reason import change_in_words

# A trainer without targets gets a few again after that many steps, to see whether it has become worth it.
_PROBE_STEPS = 1000
# One that starts without gets its first when so many steps have been seen: its first step may compile, and a
# short run does not earn that back.
_FIRST_PROBE_STEPS = 10
_PROBE_PART = 64
# The host's stages bound the iteration where they take so much longer than the trainers could.
_HOST_BOUND = 1.15
_HOST_PART = 0.9
# Cores are all in use where the stages' threads are busy for this part of what there is.
_BUSY_PART = 0.9
# A stage has the threads it needs where it takes this part of the iteration.
_NEEDED_PART = 0.8
# A trainer's time is mostly launch where that alone is this part of the iteration; without it, the others may
# be expected to take so much longer.
_LAUNCH_BOUND = 0.7
_DARING = 1.3
# What a host's trainer without targets gets at most, as a part of all.
_IDLE_PART = 0.125
# Assignments that differ in less than this part of the targets are the same.
_NEAR = 0.02
# An experiment gives a kind of trainers, or one trainer, so many targets more than it has had, as a part of
# all.
_TRIED_PART = 0.25


def probe(
    history: Sequence[Observation], present: Assignment, limits: AssignmentLimits, *, is_start: bool
) -> Decision | None:
    """Some targets for a trainer of which nothing is known: once a fair part, later seldom and few.

    Parameters
    ----------
    history, present, limits
        The arguments of the policy that calls this.
    is_start
        Whether the history holds all steps of the run; a trainer is then known where another of its kind is.
    """
    without = [index for index, most in enumerate(limits.most_units) if most and not present.split[index]]
    if not without or (is_start and len(history) < _FIRST_PROBE_STEPS):
        return None
    seen = {
        index
        for assignment in {step.assignment for step in history}
        for index, units in enumerate(assignment.split)
        if units
    }
    kinds = kinds_of(limits)
    known = {kinds[index] for index in seen} if is_start else set()
    idle = [index for index in without if index not in seen and kinds[index] not in known]
    if not idle:
        return None
    total = sum(present.split)
    if is_start:
        idle = [
            index for place, index in enumerate(idle) if kinds[index] not in [kinds[i] for i in idle[:place]]
        ]
        amount = max(1, total // (4 * len(present.split)))
    elif history[-1].step // _PROBE_STEPS != history[-2].step // _PROBE_STEPS:
        idle = [idle[history[-1].step // _PROBE_STEPS % len(idle)]]
        amount = max(1, total // _PROBE_PART)
    else:
        return None
    split = list(present.split)
    for index in idle:
        giver = max(range(len(split)), key=lambda other: split[other])
        given = min(amount, limits.most_units[index], split[giver] - 1)
        split[giver] -= given
        split[index] += given
    given = sum(split[index] for index in idle)
    if not given:
        return None
    names = ", ".join(limits.trainers[index] for index in idle)
    noun = "target" if given == 1 else "targets"
    return Decision(
        assignment=replace(present, split=tuple(split)),
        reason=f"gave {names} {given} {noun} to measure their times: they had none in the last "
        f"{len(history)} steps",
        is_trial=True,
    )


def experiment(
    model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> Decision | None:
    """An assignment that may be better though the model does not know it; None where none is new."""
    known = [period.assignment for period in evidence.periods]
    for attempt in (_fewer_threads, _idle_host, _fewer_trainers, _others):
        found = attempt(model, evidence, present, limits)
        if found is not None and not any(is_near(found[0], other) for other in known):
            after, purpose = found
            trainers_s = [
                model.trainer_s(index, units, present.threads.train)
                for index, units in enumerate(present.split)
            ]
            change = change_in_words(present, after, limits.trainers, trainers_s, model.stages_s(present))
            return Decision(
                assignment=after, reason=f"{change}; to find out whether {purpose}", is_trial=True
            )
    return None


def is_near(one: Assignment, other: Assignment) -> bool:
    """Whether two assignments are the same but for a few targets."""
    pairs = zip(one.split, other.split, strict=True)
    return one.threads == other.threads and sum(abs(a - b) for a, b in pairs) <= _NEAR * 2 * sum(one.split)


def _fewer_threads(
    model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Where stages share cores that are all in use: the threads they need, then fewer for the slowest."""
    threads = present.threads
    if not limits.threads_are_shared:
        return None
    iteration_s = float(evidence.periods[0].seconds[ITERATION])
    core_s = model.core_s(present.split, threads)
    if core_s < _BUSY_PART * limits.cores * iteration_s:
        return None
    counts = {}
    for stage, fitted, now in (("sample", model.sample, threads.sample), ("load", model.load, threads.load)):
        needed = fitted.fewest_threads(fitted.work_s(present.split), _NEEDED_PART * iteration_s)
        counts[stage] = int(min(now, needed))
    if counts == {"sample": threads.sample, "load": threads.load}:
        stage = max(counts, key=lambda stage: model.stages_s(present)[stage])
        tried = min(getattr(period.assignment.threads, stage) for period in evidence.periods)
        fewer = max(1, counts[stage] * 2 // 3)
        if fewer >= tried:
            return None
        counts[stage] = fewer
    after = replace(present, threads=replace(threads, **counts))
    return (after, "stages get faster if fewer threads share the cores") if after != present else None


def _idle_host(
    model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Some targets for the host's idle trainer where trainers are slow: with other threads it is faster."""
    host, threads, total = model.host, present.threads, sum(present.split)
    if host is None or present.split[host]:
        return None
    iteration_s = model.iteration_s(present)
    if model.host_s(present.split, threads) > _HOST_PART * iteration_s:
        return None
    most = min(model.capacity(host, iteration_s, threads.train), limits.most_units[host], total * _IDLE_PART)
    given = int(most)
    if not given:
        return None
    giver = max(
        range(len(present.split)),
        key=lambda index: model.trainer_s(index, present.split[index], threads.train),
    )
    split = list(present.split)
    given = min(given, split[giver])
    split[giver] -= given
    split[host] += given
    return replace(present, split=tuple(split)), "the CPU can do some in the same time"


def _fewer_trainers(
    model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Nothing for trainers whose time is mostly launch, where others may do their part."""
    threads, total = present.threads, sum(present.split)
    iteration_s = model.iteration_s(present)
    split = [float(units) for units in present.split]
    for index, line in enumerate(model.propagate):
        if line is not None and line.launch_s + model.synchronize_s > _LAUNCH_BOUND * iteration_s:
            split[index] = 0.0
    missing = total - sum(split)
    if not missing or not any(split):
        return None
    capacities = within_capacities(model, _DARING * iteration_s, threads.train, limits)
    room = [max(most - units, 0.0) if units else 0.0 for units, most in zip(split, capacities, strict=True)]
    if sum(room) < missing:
        return None
    split = [units + missing * space / sum(room) for units, space in zip(split, room, strict=True)]
    after = replace(present, split=whole(split, total, limits.most_units))
    return after, "the others can do them in less time"


def _others(
    model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Where sampling or loading is the bottleneck: most targets to few trainers that never had many.

    A mini-batch twice as large has less than twice the input, and some trainers need none loaded; nothing
    else shows it.
    """
    threads, total = present.threads, sum(present.split)
    host_s = model.host_s(present.split, threads)
    trainers_s = max(
        model.trainer_s(index, units, threads.train) for index, units in enumerate(present.split)
    )
    if host_s < _HOST_PART * trainers_s:
        return None
    if sum(within_capacities(model, host_s / _HOST_BOUND, threads.train, limits)) < total:
        return None
    capacities = within_capacities(model, host_s, threads.train, limits)
    kinds = kinds_of(limits)
    splits = [period.assignment.split for period in evidence.periods]
    of_kind = {
        kind: max(sum(u for u, other in zip(units, kinds, strict=True) if other == kind) for units in splits)
        for kind in kinds
    }
    tried = [max(units) for units in zip(*splits, strict=True)]
    split = [0.0] * len(capacities)
    left = float(total)
    for index in sorted(range(len(split)), key=lambda index: (of_kind[kinds[index]], tried[index])):
        split[index] = float(min(capacities[index], left))
        left -= split[index]
    new = sum(
        max(0.0, sum(u for u, other in zip(split, kinds, strict=True) if other == kind) - before)
        for kind, before in of_kind.items()
    )
    more = max(split) - max(tried)
    if left > 0 or max(new, more) < _TRIED_PART * total:
        return None
    after = replace(present, split=whole(split, total, limits.most_units))
    return after, "sampling and loading get shorter"
