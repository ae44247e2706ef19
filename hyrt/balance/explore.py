"""Exploratory assignments, which measure an unknown trainer or test a prediction of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Decision, Observation

from hyrt.balance.assignments import (
    best_assignment,
    capacities_within,
    cheapest_split,
    describe_change,
    round_split,
)
from hyrt.balance.fit import OTHER_SIZE, FittedStepModel, StageLine, trainer_kinds
from hyrt.balance.stage_times import (
    FIRST_TRAINER,
    ITERATION,
    LOAD,
    SAMPLE,
    ObservationHistory,
    ShareGrowth,
    ThreadScaling,
    with_equal_weights,
)

# A trainer without targets is probed again after this many steps.
_PROBE_STEPS = 1000
# A trainer that starts without targets is first probed after this many steps. Its first step may compile
# kernels, which does not pay off in a shorter run.
_FIRST_PROBE_STEPS = 10
_PROBE_DIVISOR = 64
# Cores are saturated if the stages' threads are busy for this fraction of the available core time.
_SATURATED_FRACTION = 0.9
# A stage is the bottleneck if it takes this fraction of the iteration.
_BOTTLENECK_FRACTION = 0.95
# A stage has enough threads if it takes at most this fraction of the iteration.
_SUFFICIENT_FRACTION = 0.8
# A trainer is launch-bound if launches take this fraction of the iteration. Without this trainer, an
# iteration may take up to `_MAX_SLOWDOWN` times as long.
_LAUNCH_BOUND = 0.7
_MAX_SLOWDOWN = 2.0
# Assignments are considered equal if fewer than this fraction of the targets differ.
_MAX_DIFFERENCE = 0.02
# Minimum relative gain that the model must predict for an experiment.
_MIN_TRIAL_GAIN = 0.05
# Minimum ratio of a trainer's share sizes that separates the effect of size from the trainer's effect.
_MIN_SIZE_RATIO = 2.0
# Maximum launch fraction that is assumed for a time observed with only one number of targets.
_MAX_LAUNCH_FRACTION = 0.95
# Maximum sampling and loading work in an experiment, relative to the current work.
_MAX_WORK_FRACTION = 0.92


def probe(
    history: Sequence[Observation], present: Assignment, limits: AssignmentLimits, *, is_start: bool
) -> Decision | None:
    """Assign targets to trainers without measurements: an equal share at first, later a few targets, rarely.

    With `is_start`, `history` contains all steps of the run, and one measured trainer represents its kind.
    """
    total = sum(present.split)
    # The times of a share below the threshold do not predict the times of larger shares.
    threshold = total // (8 * len(present.split)) if is_start else 0
    unmeasured = [
        index
        for index, limit in enumerate(limits.max_units)
        if limit > threshold and present.split[index] <= threshold
    ]
    if not unmeasured or (is_start and len(history) < _FIRST_PROBE_STEPS):
        return None
    seen = {
        index
        for assignment in {step.assignment for step in history}
        for index, units in enumerate(assignment.split)
        if units > threshold
    }
    kinds = trainer_kinds(limits)
    # At first, one trainer represents all trainers of its kind. Later, each trainer is measured.
    known = {kinds[index] for index in seen} if len(history) < 2 * _FIRST_PROBE_STEPS else set()
    idle = [index for index in unmeasured if index not in seen and kinds[index] not in known]
    if not idle:
        return None
    if is_start:
        idle = [
            index
            for position, index in enumerate(idle)
            if kinds[index] not in [kinds[i] for i in idle[:position]]
        ]
        amount = max(1, total // (4 * len(present.split)))
    elif history[-1].step // _PROBE_STEPS != history[-2].step // _PROBE_STEPS:
        idle = [idle[history[-1].step // _PROBE_STEPS % len(idle)]]
        amount = max(1, total // _PROBE_DIVISOR)
    else:
        return None
    split = list(present.split)
    for index in idle:
        source = max(range(len(split)), key=lambda other: split[other])
        amount_moved = min(amount, limits.max_units[index] - split[index], split[source] - 1)
        split[source] -= amount_moved
        split[index] += amount_moved
    amount_moved = sum(split[index] for index in idle)
    if not amount_moved:
        return None
    names = ", ".join(limits.trainers[index] for index in idle)
    noun = "target" if amount_moved == 1 else "targets"
    return Decision(
        assignment=replace(present, split=tuple(split)),
        reason=(
            f"gave {names} {amount_moved} {noun} to measure their times, because they had few or none in the "
            f"last {len(history)} steps"
        ),
        is_trial=True,
    )


Attempt = Callable[
    [FittedStepModel, ObservationHistory, Assignment, AssignmentLimits], tuple[Assignment, str] | None
]


def experiment(
    model: FittedStepModel,
    evidence: ObservationHistory,
    present: Assignment,
    limits: AssignmentLimits,
    attempts: Sequence[Attempt] = (),
) -> Decision | None:
    """Return an untried assignment that may be better than the model predicts, or None."""
    known = [period.assignment for period in evidence.periods]
    for attempt in attempts or (
        _unused_threads,
        _fewer_threads,
        _fewer_train_threads,
        _more_threads,
        _fewer_trainers,
        _launch_bound_devices,
        _by_size_alone,
        fewer_shares,
        _larger_share,
    ):
        candidate = attempt(model, evidence, present, limits)
        if candidate is not None and not any(is_near(candidate[0], other) for other in known):
            after, purpose = candidate
            trainers_s = [
                model.trainer_s(index, units, present.threads.train)
                for index, units in enumerate(present.split)
            ]
            change = describe_change(present, after, limits.trainers, trainers_s, model.stages_s(present))
            return Decision(
                assignment=after, reason=f"{change}, to find out whether {purpose}", is_trial=True
            )
    return None


def is_near(one: Assignment, other: Assignment) -> bool:
    """Return whether two assignments are equal except for a few targets."""
    pairs = zip(one.split, other.split, strict=True)
    return one.threads == other.threads and sum(abs(a - b) for a, b in pairs) <= _MAX_DIFFERENCE * 2 * sum(
        one.split
    )


def _fewer_threads(
    model: FittedStepModel, evidence: ObservationHistory, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Reduce threads to those needed, or below for the slowest stage, if shared cores are saturated."""
    threads = present.threads
    if not limits.threads_are_shared:
        return None
    iteration_s = float(evidence.periods[0].seconds[ITERATION])
    core_s = model.core_s(present.split, threads)
    if core_s < _SATURATED_FRACTION * limits.cores * iteration_s:
        return None
    counts = {}
    for stage, fitted, current in (
        ("sample", model.sample, threads.sample),
        ("load", model.load, threads.load),
    ):
        needed = fitted.min_threads(fitted.work_s(present.split), _SUFFICIENT_FRACTION * iteration_s)
        counts[stage] = int(min(current, needed))
    if counts == {"sample": threads.sample, "load": threads.load}:
        stage = max(counts, key=lambda stage: model.stages_s(present)[stage])
        min_tried = min(getattr(period.assignment.threads, stage) for period in evidence.periods)
        fewer = max(1, counts[stage] * 2 // 3)
        if fewer >= min_tried:
            return None
        counts[stage] = fewer
    after = replace(present, threads=replace(threads, **counts))
    return (after, "stages get faster if fewer threads share the cores") if after != present else None


def _more_threads(
    model: FittedStepModel, evidence: ObservationHistory, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Double the threads of the bottleneck stages if the stages share cores."""
    if not limits.threads_are_shared:
        return None
    newest = evidence.periods[0].seconds
    iteration_s = float(newest[ITERATION])
    stage_s = {"sample": float(newest[SAMPLE]), "load": float(newest[LOAD])}
    if max(stage_s.values()) < _BOTTLENECK_FRACTION * iteration_s:
        return None
    threads = {
        stage: min(limits.cores, 2 * getattr(present.threads, stage))
        for stage, seconds in stage_s.items()
        # If the slowest stage became twice as fast, this stage would be the bottleneck.
        if seconds > iteration_s / 2
    }
    after = replace(present, threads=replace(present.threads, **threads))
    return after, "the stages that the others wait for get a larger share of the cores"


def _unused_threads(
    model: FittedStepModel, evidence: ObservationHistory, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Solve for one thread per stage that never gained from additional threads."""
    variant = model
    for stage in ("sample", "load"):
        counts = [getattr(period.assignment.threads, stage) for period in evidence.periods]
        min_count = min(counts)
        fitted = getattr(model, stage)
        if min_count > 1 and fitted.curve.relative_time(min_count) <= 1.05 * fitted.curve.relative_time(
            limits.cores
        ):
            seconds = fitted.one_thread_s * fitted.curve.relative_time(getattr(present.threads, stage))
            variant_stage = replace(fitted, one_thread_s=seconds, curve=ThreadScaling(1.0))
            variant = replace(variant, **{stage: variant_stage})
    if variant is model:
        return None
    after = best_assignment(variant, present, limits)
    if variant.iteration_s(after) * (1 + _MIN_TRIAL_GAIN) > model.iteration_s(present):
        return None
    return after, "a stage that gained nothing from its extra threads can manage with fewer"


def _fewer_trainers(
    model: FittedStepModel, evidence: ObservationHistory, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Remove all targets from launch-bound trainers if the other trainers can take over."""
    threads, total = present.threads, sum(present.split)
    iteration_s = model.iteration_s(present)
    remaining = [
        units if line is None or line.launch_s + model.synchronize_s <= _LAUNCH_BOUND * iteration_s else 0
        for units, line in zip(present.split, model.propagate, strict=True)
    ]
    capacities = capacities_within(model, _MAX_SLOWDOWN * iteration_s, threads.train, limits)
    capacity = [
        max(limit - units, 0.0) if units else 0.0 for units, limit in zip(remaining, capacities, strict=True)
    ]
    missing = total - sum(remaining)
    if not missing or sum(capacity) < missing:
        return None
    split = [
        units + missing * space / sum(capacity) for units, space in zip(remaining, capacity, strict=True)
    ]
    after = replace(present, split=round_split(split, total, limits.max_units))
    return after, "the others can train these targets in less time"


def fewer_shares(
    model: FittedStepModel, evidence: ObservationHistory, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Reduce sampling and loading by fewer, larger shares, assuming the trainers' best observed speeds.

    Current speeds may be lower because stages share resources that the model lacks: host memory or a switch.
    """
    threads, total = present.threads, sum(present.split)
    unhindered = _fastest_observed(model, evidence, limits)
    within_s = float(evidence.periods[0].seconds[ITERATION]) / (1 + _MIN_TRIAL_GAIN)
    capacities = capacities_within(unhindered, within_s, threads.train, limits)
    if sum(capacities) < total:
        return None
    split = round_split(
        cheapest_split(model, capacities, total, threads, shares_cores=limits.threads_are_shared),
        total,
        limits.max_units,
    )
    parts = [
        stage.work_s(split) / max(stage.work_s(present.split), 1e-12) for stage in (model.sample, model.load)
    ]
    if min(parts) > _MAX_WORK_FRACTION or max(parts) > 1 + _MAX_DIFFERENCE:
        return None
    return replace(present, split=split), "all stages get faster with less to sample and to load"


def _fewer_train_threads(
    model: FittedStepModel, evidence: ObservationHistory, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Reduce the host trainer's threads to the number needed if stages saturate shared cores."""
    host, threads = model.host, present.threads
    if not limits.threads_are_shared or host is None or not present.split[host]:
        return None
    iteration_s = float(evidence.periods[0].seconds[ITERATION])
    if model.core_s(present.split, threads) < _SATURATED_FRACTION * limits.cores * iteration_s:
        return None
    needed = threads.train
    while (
        needed > 1
        and model.trainer_s(host, present.split[host], needed - 1) <= _SUFFICIENT_FRACTION * iteration_s
    ):
        needed -= 1
    if needed == threads.train:
        return None
    after = replace(present, threads=replace(threads, train=needed))
    return after, "stages get faster if fewer threads share the cores"


def _larger_share(
    model: FittedStepModel, evidence: ObservationHistory, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Move half of the other trainers' targets to the fastest device if each device had only one share size.

    In that case, the launch fraction of a device's time is unknown: a large share may take no longer than a
    small one.
    """
    newest = evidence.periods[0]
    seen = {period.assignment.split for period in evidence.periods}
    propagate_s = newest.seconds[FIRST_TRAINER : FIRST_TRAINER + len(present.split)].tolist()
    busy = [index for index, units in enumerate(present.split) if units]
    devices = [index for index in busy if not limits.is_host[index]]
    is_waited_for = max(propagate_s) + model.synchronize_s >= _BOTTLENECK_FRACTION * float(
        newest.seconds[ITERATION]
    )
    if len(seen) > 1 or len(busy) < 2 or not devices or not is_waited_for:
        return None
    receiver = min(devices, key=lambda index: propagate_s[index] / present.split[index])
    split = list(present.split)
    capacity = limits.max_units[receiver] - split[receiver]
    for index in busy:
        if index != receiver:
            moved = min(split[index] // 2, capacity)
            split[index] -= moved
            split[receiver] += moved
            capacity -= moved
    return replace(present, split=tuple(split)), "one large share takes less time than many small ones"


def _launch_bound_devices(
    model: FittedStepModel, evidence: ObservationHistory, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Solve as if devices with one observed share size hardly slowed down for more targets.

    A time observed with few targets gives only a lower bound on a device's speed. If it were taken as a time
    per target, the device would seem too slow for more targets.
    """
    kinds = trainer_kinds(limits)
    sizes: dict[str, set[int]] = {kind: set() for kind in kinds}
    for period in evidence.periods:
        for kind, units in zip(kinds, period.assignment.split, strict=True):
            if units:
                sizes[kind].add(units)
    propagate, train = list(model.propagate), model.train_curve.relative_time(present.threads.train)
    # If device times hardly depend on the share size, the host alone may be faster than the devices.
    launches = _is_launch_bound(evidence, kinds, limits)
    for index, (line, kind) in enumerate(zip(model.propagate, kinds, strict=True)):
        seen = sizes[kind]
        if line is None or not seen or max(seen) > OTHER_SIZE * min(seen):
            continue
        if limits.is_host[index] and not launches:
            continue
        # Scale the host trainer's work by its relative time with the current number of threads.
        work = line.growth.work(max(seen)) * (train if limits.is_host[index] else 1.0)
        observed_s = line.launch_s + line.unit_s * work
        propagate[index] = StageLine(
            _MAX_LAUNCH_FRACTION * observed_s, (1 - _MAX_LAUNCH_FRACTION) * observed_s / work, line.growth
        )
    if propagate == list(model.propagate):
        return None
    variant = replace(model, propagate=tuple(propagate))
    after = best_assignment(variant, present, limits)
    if variant.iteration_s(after) * (1 + _MIN_TRIAL_GAIN) > model.iteration_s(present):
        return None
    return after, "a device takes hardly any longer with more targets"


def _by_size_alone(
    model: FittedStepModel, evidence: ObservationHistory, present: Assignment, limits: AssignmentLimits
) -> tuple[Assignment, str] | None:
    """Solve as if the cost of sampling or loading depended on share sizes only, not on trainers.

    The two causes cannot be distinguished until a trainer has had clearly different share sizes.
    """
    for trainer in range(len(present.split)):
        sizes = [units for period in evidence.periods if (units := period.assignment.split[trainer])]
        if sizes and max(sizes) >= _MIN_SIZE_RATIO * min(sizes):
            return None
    newest, threads = evidence.periods[0], present.threads
    split = np.array(present.split, dtype=np.float64)
    samples = newest.seconds[SAMPLE] > newest.seconds[LOAD]
    observed_s = float(newest.seconds[SAMPLE if samples else LOAD])
    if observed_s < _BOTTLENECK_FRACTION * newest.seconds[ITERATION] or len(split[split > 0]) < 2:
        return None
    if samples:
        fitted = with_equal_weights(model.sample, newest.sample_s, split, threads.sample)
        variant, stage = replace(model, sample=fitted), "sampling"
    else:
        fitted = with_equal_weights(model.load, newest.load_s, split, threads.load)
        variant, stage = replace(model, load=fitted), "loading"
    after = best_assignment(variant, present, limits)
    if variant.iteration_s(after) * (1 + _MIN_TRIAL_GAIN) > model.iteration_s(present):
        return None
    return after, f"{stage} takes less time for a few large shares than for many small ones"


def _is_launch_bound(evidence: ObservationHistory, kinds: Sequence[str], limits: AssignmentLimits) -> bool:
    """Return whether the devices of any kind take about as long for few targets as for many."""
    newest = evidence.periods[0]
    times: dict[str, list[tuple[int, float]]] = {kind: [] for kind in kinds}
    for index, (kind, units) in enumerate(zip(kinds, newest.assignment.split, strict=True)):
        if units and not limits.is_host[index]:
            times[kind].append((units, float(newest.seconds[FIRST_TRAINER + index])))
    for shares in times.values():
        if not shares:
            continue
        (smallest, smallest_s), (largest, largest_s) = min(shares), max(shares)
        if largest >= _MAX_SLOWDOWN * smallest and smallest_s > _LAUNCH_BOUND * largest_s:
            return True
    return False


def _fastest_observed(
    model: FittedStepModel, evidence: ObservationHistory, limits: AssignmentLimits
) -> FittedStepModel:
    """Return the model in which each trainer has the best speed observed for its kind."""
    kinds, count = trainer_kinds(limits), len(limits.trainers)

    def fastest(first: int, growth: ShareGrowth) -> dict[str, float]:
        """Return the minimum observed seconds per unit of work by trainer kind."""
        unit_s_by_kind = dict.fromkeys(kinds, math.inf)
        for period in evidence.periods:
            for index, units in enumerate(period.assignment.split):
                if units:
                    unit_s = float(period.seconds[first + index]) / growth.work(units)
                    unit_s_by_kind[kinds[index]] = min(unit_s_by_kind[kinds[index]], unit_s)
        return unit_s_by_kind

    def fastest_alone(first: int, growth: ShareGrowth) -> dict[str, float]:
        """Return the minimum observed seconds per unit of work by kind if trainers of a kind share a link.

        The work of all these trainers then takes as long as the slowest trainer.
        """
        unit_s_by_kind = dict.fromkeys(kinds, math.inf)
        for period in evidence.periods:
            seconds = period.seconds[first : first + count].tolist()
            for kind in unit_s_by_kind:
                members = [index for index in range(count) if kinds[index] == kind]
                work = sum(growth.work(period.assignment.split[index]) for index in members)
                if work:
                    unit_s_by_kind[kind] = min(
                        unit_s_by_kind[kind], max(seconds[index] for index in members) / work
                    )
        return unit_s_by_kind

    def lines(
        observed_lines: Sequence[StageLine | None], unit_s: dict[str, float], growth: ShareGrowth
    ) -> tuple[StageLine | None, ...]:
        return tuple(
            line if line is None or host else StageLine(0.0, unit_s[kind], growth)
            for line, host, kind in zip(observed_lines, limits.is_host, kinds, strict=True)
        )

    sample, load = model.sample.growth, model.load.growth
    return replace(
        model,
        propagate=lines(model.propagate, fastest(FIRST_TRAINER, sample), sample),
        transfer=lines(model.transfer, fastest_alone(FIRST_TRAINER + count, load), load),
    )
