"""Solver for the assignment with the shortest iteration, and descriptions of changes for users."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Threads

from hyrt.balance.fit import FittedStepModel
from hyrt.formatting import format_duration

THREAD_STAGES = ("sample", "load", "train")
"""Stages whose number of threads an assignment determines."""


def split_moves(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the shortest list of moves (amount, source, destination) between splits, largest first."""
    surplus = {
        index: old - new for index, (old, new) in enumerate(zip(before, after, strict=True)) if old > new
    }
    deficit = {
        index: new - old for index, (old, new) in enumerate(zip(before, after, strict=True)) if new > old
    }
    result = []
    while surplus and deficit:
        source = max(surplus, key=lambda index: surplus[index])
        destination = max(deficit, key=lambda index: deficit[index])
        amount = min(surplus[source], deficit[destination])
        result.append((amount, source, destination))
        for side, index in ((surplus, source), (deficit, destination)):
            side[index] -= amount
            if not side[index]:
                del side[index]
    return sorted(result, reverse=True)


def describe_change(
    before: Assignment,
    after: Assignment,
    trainers: Sequence[str],
    trainers_s: Sequence[float],
    stages_s: Mapping[str, float],
    expected_s: float | None = None,
) -> str:
    """Describe the targets and threads that move, and the stage times that are the reason.

    Example: "moved 96 targets cpu:0 → cuda:0: cpu:0 31.0 ms, cuda:0 19.2 ms; a step should take 24.6 ms".
    `trainers_s` has the time of each trainer's slowest stage, `stages_s` the known times of `sample`, `load`
    and `train`.
    """
    parts, times = [], dict[str, float]()
    steps = split_moves(before.split, after.split)
    for amount, source, destination in steps[:2]:
        noun = "target" if amount == 1 else "targets"
        parts.append(f"{amount} {noun} {trainers[source]} → {trainers[destination]}")
        times.update({trainers[source]: trainers_s[source], trainers[destination]: trainers_s[destination]})
    if len(steps) > 2:
        parts.append(f"{sum(amount for amount, _, _ in steps[2:])} more among {len(trainers)} trainers")
    for text, stages in _thread_changes(before.threads, after.threads):
        parts.append(text)
        times.update({stage: stages_s[stage] for stage in stages if stage in stages_s})
    figures = ", ".join(f"{name} {format_duration(seconds)}" for name, seconds in times.items())
    expected = f"; a step should take {format_duration(expected_s)}" if expected_s is not None else ""
    return f"moved {', '.join(parts)}: {figures}{expected}"


def _thread_changes(before: Threads, after: Threads) -> list[tuple[str, tuple[str, ...]]]:
    """Return a description of each change of thread counts, and the stages that it affects."""
    old_counts = [getattr(before, stage) for stage in THREAD_STAGES]
    new_counts = [getattr(after, stage) for stage in THREAD_STAGES]
    changes: list[tuple[str, tuple[str, ...]]] = []
    for amount, source, destination in split_moves(old_counts, new_counts):
        noun = "thread" if amount == 1 else "threads"
        changes.append(
            (
                f"{amount} {noun} {THREAD_STAGES[source]} → {THREAD_STAGES[destination]}",
                (THREAD_STAGES[source], THREAD_STAGES[destination]),
            )
        )
        old_counts[source] -= amount
        old_counts[destination] += amount
    for stage, old, new in zip(THREAD_STAGES, old_counts, new_counts, strict=True):
        if old != new:
            changes.append((f"{stage} from {old} to {new} threads", (stage,)))
    return changes


# Relative tolerance of the bisection, and its first candidate: usually little can be gained.
_PRECISION = 4e-3
_FIRST_FRACTION = 0.97
# If another stage is the bottleneck, maximum trainer time relative to it, unless this slows the step down.
_MARGIN_FRACTION = 0.9


def best_assignment(fit: FittedStepModel, present: Assignment, limits: AssignmentLimits) -> Assignment:
    """Return the split and threads with the shortest predicted iteration, preferably near the current ones.

    Trainers without observations get no units.
    """
    total = sum(present.split)
    upper = max(fit.iteration_s(present), 1e-9)
    plan = _plan(fit, upper, present, limits, total)
    rounds = 0
    while plan is None and rounds < 40:
        upper, rounds = upper * 1.5, rounds + 1
        plan = _plan(fit, upper, present, limits, total)
    if plan is None:
        return present
    lower, middle = 0.0, _FIRST_FRACTION * upper
    while upper - lower > _PRECISION * upper:
        tighter = _plan(fit, middle, present, limits, total)
        if tighter is None:
            lower = middle
        else:
            upper, plan = middle, tighter
        middle = (lower + upper) / 2
    threads, capacities = plan
    # Leave a margin if another stage is the bottleneck, so that noise does not shift the bottleneck to a
    # trainer.
    capacities_with_margin = capacities_within(fit, upper * _MARGIN_FRACTION, threads.train, limits)
    if sum(capacities_with_margin) >= total:
        capacities = capacities_with_margin
    split = _nearest(present.split, capacities, total)
    if fit.host_s(split, threads) > upper * 1.001:
        capacities = capacities_within(fit, upper, threads.train, limits)
        light_split = cheapest_split(fit, capacities, total, threads, shares_cores=limits.threads_are_shared)
        split = _interpolate_splits(fit, split, light_split, threads, upper * 1.001)
    units = round_split(split, total, limits.max_units)
    return Assignment(split=units, threads=_reassign_spare_threads(fit, units, threads, upper, limits))


def _reassign_spare_threads(
    fit: FittedStepModel, split: Sequence[int], threads: Threads, within_s: float, limits: AssignmentLimits
) -> Threads:
    """Give threads that training does not need to sampling and loading, as a margin."""
    host = fit.host
    if host is None or limits.threads_are_shared or not limits.max_units[host]:
        return threads
    needed = threads.train
    while needed > 1 and fit.trainer_s(host, split[host], needed - 1) <= _MARGIN_FRACTION * within_s:
        needed -= 1
    spare = threads.train - needed
    sample = round(spare * threads.sample / (threads.sample + threads.load))
    return Threads(sample=threads.sample + sample, load=threads.load + spare - sample, train=needed)


def _plan(
    fit: FittedStepModel, within_s: float, present: Assignment, limits: AssignmentLimits, total: int
) -> tuple[Threads, list[float]] | None:
    """Return threads and trainer capacities with which a step takes at most `within_s`, or None.

    The search starts with the host trainer's current threads and then tries the maximum, because units that
    the host trains may need fewer threads for loading.
    """
    max_capacities = capacities_within(fit, within_s, limits.cores, limits)
    # More threads never slow a trainer down: if a step does not fit with all cores, it never fits.
    if sum(max_capacities) < total:
        return None

    def capacities(train: int) -> list[float]:
        """Return the trainers' capacities if the host trainer has `train` threads."""
        plan, host = list(max_capacities), fit.host
        if host is not None:
            plan[host] = math.floor(min(fit.capacity(host, within_s, train), limits.max_units[host]))
        return plan

    current_train, max_train = present.threads.train, limits.cores - 2
    plan = _plan_from(current_train, capacities, fit, within_s, present, limits, total)
    if plan is None and current_train < max_train and not limits.threads_are_shared and _host_trains(limits):
        plan = _plan_from(max_train, capacities, fit, within_s, present, limits, total)
    return plan


def _host_trains(limits: AssignmentLimits) -> bool:
    return any(host and limit for host, limit in zip(limits.is_host, limits.max_units, strict=True))


def _plan_from(
    train: int,
    capacities_with: Callable[[int], list[float]],
    fit: FittedStepModel,
    within_s: float,
    present: Assignment,
    limits: AssignmentLimits,
    total: int,
) -> tuple[Threads, list[float]] | None:
    """Return the result of `_plan`, starting with `train` threads for the host trainer."""
    current, shares, trains = present.threads, limits.threads_are_shared, _host_trains(limits)
    counts = (0, 0)
    capacities = capacities_with(train)
    # Iterate: the split determines the threads for sampling and loading, and so those left for training.
    for _ in range(2):
        is_enough = sum(capacities) >= total
        split_limits = capacities if is_enough else [float(units) for units in limits.max_units]
        split = cheapest_split(fit, split_limits, total, current, shares_cores=shares)
        sample = fit.sample.min_threads(fit.sample.work_s(split), within_s)
        load = fit.load.min_threads(fit.load.work_s(split), within_s)
        if max(sample, load) > limits.cores:
            return None
        counts = (int(sample), int(load))
        if not trains:
            if sum(counts) > limits.cores and not limits.threads_are_shared:
                return None
            break
        previous_train, train = train, limits.cores if shares else limits.cores - sum(counts)
        if train < 1:
            return None
        if train == previous_train:
            break
        capacities = capacities_with(train)
    if sum(capacities) < total:
        return None
    if limits.threads_are_shared:
        # If cores are free, use more threads than needed, because every stage becomes faster.
        split = cheapest_split(fit, capacities, total, current, shares_cores=shares)
        current_or_needed = Threads(
            sample=max(counts[0], current.sample), load=max(counts[1], current.load), train=train
        )
        is_busy = fit.core_part * fit.core_s(split, current_or_needed) > _MARGIN_FRACTION * within_s
        threads = Threads(sample=counts[0], load=counts[1], train=train) if is_busy else current_or_needed
    else:
        threads = _threads(counts, train, present, limits, trains)
    if (
        fit.host_s(cheapest_split(fit, capacities, total, threads, shares_cores=shares), threads)
        > within_s * 1.0001
    ):
        return None
    return threads, capacities


def _threads(
    counts: tuple[int, int], train: int, present: Assignment, limits: AssignmentLimits, trains: bool
) -> Threads:
    """Return threads with at least `counts` for sampling and loading, and distribute free cores."""
    sample, load = counts
    current = present.threads
    if trains:
        return Threads(sample=sample, load=load, train=train)
    free = limits.cores - sample - load
    unchanged = min(max(current.sample - sample, 0), free)
    sample += unchanged
    free -= unchanged
    unchanged = min(max(current.load - load, 0), free)
    load += unchanged
    free -= unchanged
    return Threads(sample=sample + free // 2, load=load + free - free // 2, train=current.train)


def capacities_within(
    fit: FittedStepModel, within_s: float, train_threads: int, limits: AssignmentLimits
) -> list[float]:
    """Return the number of units that each trainer can process within `within_s` seconds."""
    return [
        math.floor(min(fit.capacity(trainer, within_s, train_threads), limit))
        for trainer, limit in enumerate(limits.max_units)
    ]


def _nearest(present: Sequence[int], capacities: Sequence[float], total: int) -> list[float]:
    """Return the split that is nearest to the current one and does not exceed the capacities.

    Units above a trainer's capacity move to trainers with free capacity.
    """
    split = [min(float(units), limit) for units, limit in zip(present, capacities, strict=True)]
    missing = total - sum(split)
    space_left = [min(limit, total) - units for units, limit in zip(split, capacities, strict=True)]
    free = sum(space_left)
    if missing > 0 and free > 0:
        split = [units + missing * space / free for units, space in zip(split, space_left, strict=True)]
    return split


def cheapest_split(
    fit: FittedStepModel, capacities: Sequence[float], total: int, threads: Threads, *, shares_cores: bool
) -> list[float]:
    """Return a split that fills trainers up to their capacity, in order of host cost per unit."""
    costs = fit.unit_costs(capacities)
    split = _fill_in_order(costs, capacities, total)
    host = fit.host
    if not shares_cores or host is None or not capacities[host]:
        return split
    # Training on the host occupies the same cores, so add it to the cost of the host trainer.
    line = fit.propagate[host]
    if line is not None:
        costs[host] += line.seconds(capacities[host]) / capacities[host]
    alternative = _fill_in_order(costs, capacities, total)
    return min(split, alternative, key=lambda candidate: fit.host_s(candidate, threads))


def _fill_in_order(costs: Sequence[float], capacities: Sequence[float], total: int) -> list[float]:
    split = [0.0] * len(capacities)
    remaining = float(total)
    for trainer in sorted(range(len(split)), key=lambda index: costs[index]):
        split[trainer] = min(capacities[trainer], remaining)
        remaining -= split[trainer]
    return split


def _interpolate_splits(
    fit: FittedStepModel, near: Sequence[float], light: Sequence[float], threads: Threads, within_s: float
) -> list[float]:
    """Move from `near` towards `light` just far enough for the host stages to take at most `within_s`."""
    low, high = 0.0, 1.0

    def interpolate(fraction: float) -> list[float]:
        return [a + fraction * (b - a) for a, b in zip(near, light, strict=True)]

    for _ in range(8):
        middle = (low + high) / 2
        if fit.host_s(interpolate(middle), threads) > within_s:
            low = middle
        else:
            high = middle
    return interpolate(high)


def round_split(split: Sequence[float], total: int, limits: Sequence[int]) -> tuple[int, ...]:
    """Round the split to whole units that add up to `total`, rounding up the largest fractions."""
    units = [min(math.floor(share + 1e-9), limit) for share, limit in zip(split, limits, strict=True)]
    order = sorted(range(len(split)), key=lambda index: split[index] - units[index], reverse=True)
    remaining = total - sum(units)
    while remaining > 0:
        free = [index for index in order if units[index] < limits[index]]
        if not free:
            break
        for index in free[:remaining]:
            units[index] += 1
        remaining = total - sum(units)
    return tuple(units)
