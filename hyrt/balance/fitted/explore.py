"""Moves made to learn something: what an unknown trainer takes, or what is faster than the model says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.policy import AssignmentLimits, Decision, Observation

from hyrt.balance.fitted.evidence import FIRST_TRAINER, ITERATION, LOAD, SAMPLE, Evidence
from hyrt.balance.fitted.fit import OTHER_SIZE, Fit, Line, kinds_of
from hyrt.balance.fitted.growth import ShareGrowth
from hyrt.balance.fitted.host_stage import by_size_alone
from hyrt.balance.fitted.solve import best_assignment, lightest, whole, within_capacities
from hyrt.balance.fitted.thread_curve import ThreadCurve
from hyrt.balance.reason import change_in_words

# A trainer without targets gets a few again after that many steps, to see whether it has become worth it.
_PROBE_STEPS = 1000
# One that starts without gets its first when so many steps have been seen: its first step may compile, and a
# short run does not earn that back.
_FIRST_PROBE_STEPS = 10
_PROBE_PART = 64
# Cores are all in use where the stages' threads are busy for this part of what there is.
_BUSY_PART = 0.9
# All wait for a stage that takes this part of the iteration.
_WAITED_PART = 0.95
# A stage has the threads it needs where it takes this part of the iteration.
_NEEDED_PART = 0.8
# A trainer's time is mostly launch where that alone is this part of the iteration; without it, the others may
# be expected to take so much longer.
_LAUNCH_BOUND = 0.7
_DARING = 2.0
# Assignments that differ in less than this part of the targets are the same.
_NEAR = 0.02
# An experiment must promise this much.
_TRIED_GAIN = 0.05
# Sizes of a trainer's shares that differ by less hardly tell how work grows from what its own targets cost.
_TOLD_APART = 2.0
# The part that may be launch of a time that was seen with one number of targets.
_MOST_LAUNCH = 0.95
# What an experiment leaves of the work of sampling and loading, at most.
_LIGHTER_PART = 0.92


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
    total = sum(present.split)
    # What so few targets take says little of what more would.
    few = total // (8 * len(present.split)) if is_start else 0
    without = [
        index for index, most in enumerate(limits.most_units) if most > few and present.split[index] <= few
    ]
    if not without or (is_start and len(history) < _FIRST_PROBE_STEPS):
        return None
    seen = {
        index
        for assignment in {step.assignment for step in history}
        for index, units in enumerate(assignment.split)
        if units > few
    }
    kinds = kinds_of(limits)
    # One of a kind stands for the others until there is time to look at each.
    known = {kinds[index] for index in seen} if len(history) < 2 * _FIRST_PROBE_STEPS else set()
    idle = [index for index in without if index not in seen and kinds[index] not in known]
    if not idle:
        return None
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
        given = min(amount, limits.most_units[index] - split[index], split[giver] - 1)
        split[giver] -= given
        split[index] += given
    given = sum(split[index] for index in idle)
    if not given:
        return None
    names = ", ".join(limits.trainers[index] for index in idle)
    noun = "target" if given == 1 else "targets"
    return Decision(
        assignment=replace(present, split=tuple(split)),
        reason=f"gave {names} {given} {noun} to measure their times: they had few or none in the last "
        f"{len(history)} steps",
        is_trial=True,
    )


Attempt = Callable[[Fit, Evidence, Assignment, AssignmentLimits], tuple[Assignment, str] | None]


def experiment(
    model: Fit,
    evidence: Evidence,
    present: Assignment,
    limits: AssignmentLimits,
    attempts: Sequence[Attempt] = (),
) -> Decision | None:
    """An assignment that may be better though the model does not know it; None where none is new.

    Parameters
    ----------
    model, evidence, present, limits
        What is known, and how the run stands.
    attempts
        What to try; by default all that there is.
    """
    known = [period.assignment for period in evidence.periods]
    for attempt in attempts or (
        _needless_threads,
        _fewer_threads,
        _fewer_train_threads,
        _more_threads,
        _fewer_trainers,
        _seen_small,
        _by_size_alone,
        lighter,
        _larger_share,
    ):
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


def _more_threads(
    model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Where stages share cores: twice the threads for what the iteration waits for, or soon would."""
    if not limits.threads_are_shared:
        return None
    newest = evidence.periods[0].seconds
    iteration_s = float(newest[ITERATION])
    took = {"sample": float(newest[SAMPLE]), "load": float(newest[LOAD])}
    if max(took.values()) < _WAITED_PART * iteration_s:
        return None
    more = {
        stage: min(limits.cores, 2 * getattr(present.threads, stage))
        for stage, seconds in took.items()
        # With the slowest twice as fast, the other one would be what is waited for.
        if seconds > iteration_s / 2
    }
    after = replace(present, threads=replace(present.threads, **more))
    return after, "the stages that all others wait for get more of the cores"


def _needless_threads(
    model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """What is best if a stage needs but one thread that has not been seen to gain from all it had."""
    variant = model
    for stage in ("sample", "load"):
        counts = [getattr(period.assignment.threads, stage) for period in evidence.periods]
        fewest = min(counts)
        fitted = getattr(model, stage)
        if fewest > 1 and fitted.curve.at(fewest) <= 1.05 * fitted.curve.at(limits.cores):
            seconds = fitted.one_thread_s * fitted.curve.at(getattr(present.threads, stage))
            one = replace(fitted, one_thread_s=seconds, curve=ThreadCurve(1.0))
            variant = replace(variant, **{stage: one})
    if variant is model:
        return None
    after = best_assignment(variant, present, limits)
    if variant.iteration_s(after) * (1 + _TRIED_GAIN) > model.iteration_s(present):
        return None
    return after, "a stage that gained nothing from its threads can do with fewer"


def _fewer_trainers(
    model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Nothing for trainers whose time is mostly launch, where others may do their part."""
    threads, total = present.threads, sum(present.split)
    iteration_s = model.iteration_s(present)
    kept = [
        units if line is None or line.launch_s + model.synchronize_s <= _LAUNCH_BOUND * iteration_s else 0
        for units, line in zip(present.split, model.propagate, strict=True)
    ]
    capacities = within_capacities(model, _DARING * iteration_s, threads.train, limits)
    room = [max(most - units, 0.0) if units else 0.0 for units, most in zip(kept, capacities, strict=True)]
    missing = total - sum(kept)
    if not missing or sum(room) < missing:
        return None
    split = [units + missing * space / sum(room) for units, space in zip(kept, room, strict=True)]
    after = replace(present, split=whole(split, total, limits.most_units))
    return after, "the others can do them in less time"


def lighter(
    model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Fewer, larger shares, so that less is sampled and loaded, if trainers can be as fast as they ever were.

    Stages slow each other where they share what the model does not know of: the host's memory, a switch.
    """
    threads, total = present.threads, sum(present.split)
    unhindered = _unhindered(model, evidence, limits)
    within_s = float(evidence.periods[0].seconds[ITERATION]) / (1 + _TRIED_GAIN)
    capacities = within_capacities(unhindered, within_s, threads.train, limits)
    if sum(capacities) < total:
        return None
    split = whole(
        lightest(model, capacities, total, threads, shares_cores=limits.threads_are_shared),
        total,
        limits.most_units,
    )
    parts = [
        stage.work_s(split) / max(stage.work_s(present.split), 1e-12) for stage in (model.sample, model.load)
    ]
    if min(parts) > _LIGHTER_PART or max(parts) > 1 + _NEAR:
        return None
    return replace(present, split=split), "all stages get faster with less to sample and to load"


def _fewer_train_threads(
    model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Where stages share cores that are all in use: no more threads for the host's trainer than it needs."""
    host, threads = model.host, present.threads
    if not limits.threads_are_shared or host is None or not present.split[host]:
        return None
    iteration_s = float(evidence.periods[0].seconds[ITERATION])
    if model.core_s(present.split, threads) < _BUSY_PART * limits.cores * iteration_s:
        return None
    needed = threads.train
    while needed > 1 and model.trainer_s(host, present.split[host], needed - 1) <= _NEEDED_PART * iteration_s:
        needed -= 1
    if needed == threads.train:
        return None
    after = replace(present, threads=replace(threads, train=needed))
    return after, "stages get faster if fewer threads share the cores"


def _larger_share(
    model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Half of the others' targets for the fastest device, where each was seen with one number of them only.

    How much of a device's time is launch is not known then: one large share may take no longer than many
    small ones.
    """
    newest = evidence.periods[0]
    seen = {period.assignment.split for period in evidence.periods}
    propagate_s = newest.seconds[FIRST_TRAINER : FIRST_TRAINER + len(present.split)].tolist()
    busy = [index for index, units in enumerate(present.split) if units]
    devices = [index for index in busy if not limits.is_host[index]]
    is_waited_for = max(propagate_s) + model.synchronize_s >= _WAITED_PART * float(newest.seconds[ITERATION])
    if len(seen) > 1 or len(busy) < 2 or not devices or not is_waited_for:
        return None
    receiver = min(devices, key=lambda index: propagate_s[index] / present.split[index])
    split = list(present.split)
    room = limits.most_units[receiver] - split[receiver]
    for index in busy:
        if index != receiver:
            given = min(split[index] // 2, room)
            split[index] -= given
            split[receiver] += given
            room -= given
    return replace(present, split=tuple(split)), "one large share takes less time than many small ones"


def _seen_small(
    model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """What is best if devices that were seen with one number of targets take no longer for more.

    All that is known of the time of one that had few is that so many targets do not take longer. Taken for
    the time of those targets, it makes the device seem too slow to be given more.
    """
    kinds = kinds_of(limits)
    sizes: dict[str, set[int]] = {kind: set() for kind in kinds}
    for period in evidence.periods:
        for kind, units in zip(kinds, period.assignment.split, strict=True):
            if units:
                sizes[kind].add(units)
    propagate, train = list(model.propagate), model.train_curve.at(present.threads.train)
    # Whether a share's size changes hardly anything for devices: then the host alone may be faster than they.
    launches = _is_launch(evidence, kinds, limits)
    for index, (line, kind) in enumerate(zip(model.propagate, kinds, strict=True)):
        seen = sizes[kind]
        if line is None or not seen or max(seen) > OTHER_SIZE * min(seen):
            continue
        if limits.is_host[index] and not launches:
            continue
        # With as many threads as it has, where it has some.
        work = line.growth.of(max(seen)) * (train if limits.is_host[index] else 1.0)
        took_s = line.launch_s + line.unit_s * work
        propagate[index] = Line(_MOST_LAUNCH * took_s, (1 - _MOST_LAUNCH) * took_s / work, line.growth)
    if propagate == list(model.propagate):
        return None
    variant = replace(model, propagate=tuple(propagate))
    after = best_assignment(variant, present, limits)
    if variant.iteration_s(after) * (1 + _TRIED_GAIN) > model.iteration_s(present):
        return None
    return after, "a device takes hardly longer for more targets than it had"


def _by_size_alone(
    model: Fit, evidence: Evidence, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """What is best if a target of a larger share takes less to sample or to load, whoever has it.

    Where no trainer was seen with numbers of targets that differ much, nothing tells whether its share takes
    less for being larger, or for being its own.
    """
    for trainer in range(len(present.split)):
        sizes = [units for period in evidence.periods if (units := period.assignment.split[trainer])]
        if sizes and max(sizes) >= _TOLD_APART * min(sizes):
            return None
    newest, threads = evidence.periods[0], present.threads
    split = np.array(present.split, dtype=np.float64)
    samples = newest.seconds[SAMPLE] > newest.seconds[LOAD]
    took_s = float(newest.seconds[SAMPLE if samples else LOAD])
    if took_s < _WAITED_PART * newest.seconds[ITERATION] or len(split[split > 0]) < 2:
        return None
    if samples:
        fitted = by_size_alone(model.sample, newest.sample_s, split, threads.sample)
        variant, stage = replace(model, sample=fitted), "sampling"
    else:
        fitted = by_size_alone(model.load, newest.load_s, split, threads.load)
        variant, stage = replace(model, load=fitted), "loading"
    after = best_assignment(variant, present, limits)
    if variant.iteration_s(after) * (1 + _TRIED_GAIN) > model.iteration_s(present):
        return None
    return after, f"{stage} takes less for a few large shares than for many small ones"


def _is_launch(evidence: Evidence, kinds: Sequence[str], limits: AssignmentLimits) -> bool:
    """Whether the devices of some kind now take about as long for a few targets as for many."""
    newest = evidence.periods[0]
    took: dict[str, list[tuple[int, float]]] = {kind: [] for kind in kinds}
    for index, (kind, units) in enumerate(zip(kinds, newest.assignment.split, strict=True)):
        if units and not limits.is_host[index]:
            took[kind].append((units, float(newest.seconds[FIRST_TRAINER + index])))
    for shares in took.values():
        if not shares:
            continue
        (fewest, least_s), (most, most_s) = min(shares), max(shares)
        if most >= _DARING * fewest and least_s > _LAUNCH_BOUND * most_s:
            return True
    return False


def _unhindered(model: Fit, evidence: Evidence, limits: AssignmentLimits) -> Fit:
    """The model with trainers as fast for what they do as any of their kind was in any period."""
    kinds, count = kinds_of(limits), len(limits.trainers)

    def fastest(first: int, growth: ShareGrowth) -> dict[str, float]:
        """Seconds a unit of work by kind."""
        found = dict.fromkeys(kinds, math.inf)
        for period in evidence.periods:
            for index, units in enumerate(period.assignment.split):
                if units:
                    unit_s = float(period.seconds[first + index]) / growth.of(units)
                    found[kinds[index]] = min(found[kinds[index]], unit_s)
        return found

    def fastest_alone(first: int, growth: ShareGrowth) -> dict[str, float]:
        """The same if those of a kind share one link: together they do all their work in the longest time."""
        found = dict.fromkeys(kinds, math.inf)
        for period in evidence.periods:
            seconds = period.seconds[first : first + count].tolist()
            for kind in found:
                ours = [index for index in range(count) if kinds[index] == kind]
                work = sum(growth.of(period.assignment.split[index]) for index in ours)
                if work:
                    found[kind] = min(found[kind], max(seconds[index] for index in ours) / work)
        return found

    def lines(
        given: Sequence[Line | None], unit_s: dict[str, float], growth: ShareGrowth
    ) -> tuple[Line | None, ...]:
        return tuple(
            line if line is None or host else Line(0.0, unit_s[kind], growth)
            for line, host, kind in zip(given, limits.is_host, kinds, strict=True)
        )

    sample, load = model.sample.growth, model.load.growth
    return replace(
        model,
        propagate=lines(model.propagate, fastest(FIRST_TRAINER, sample), sample),
        transfer=lines(model.transfer, fastest_alone(FIRST_TRAINER + count, load), load),
    )
