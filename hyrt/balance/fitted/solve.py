"""The assignment that the fitted model finds best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hyrt_perfmodel.assignment import Assignment, Threads
from hyrt_perfmodel.policy import AssignmentLimits

from hyrt.balance.fitted.fit import Fit

# How exactly the iteration is found, and what is tried first: mostly little can be gained.
_PRECISION = 4e-3
_NEAR_PART = 0.97
# Trainers are kept this far below another stage that bounds the iteration, where that costs nothing.
_MARGIN = 0.9


def best_assignment(fit: Fit, present: Assignment, limits: AssignmentLimits) -> Assignment:
    """The split and the threads that minimise the fitted iteration, near the present ones where several do.

    A trainer of which nothing is known keeps nothing.
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
    lower, middle = 0.0, _NEAR_PART * upper
    while upper - lower > _PRECISION * upper:
        tighter = _plan(fit, middle, present, limits, total)
        if tighter is None:
            lower = middle
        else:
            upper, plan = middle, tighter
        middle = (lower + upper) / 2
    threads, capacities = plan
    # The trainers alone may be faster: where they are, a margin keeps their noise out of the bottleneck.
    relaxed = within_capacities(fit, upper * _MARGIN, threads.train, limits)
    if sum(relaxed) >= total:
        capacities = relaxed
    split = _nearest(present.split, capacities, total)
    if fit.host_s(split, threads) > upper * 1.001:
        capacities = within_capacities(fit, upper, threads.train, limits)
        light = lightest(fit, capacities, total, threads, shares_cores=limits.threads_are_shared)
        split = _between(fit, split, light, threads, upper * 1.001)
    units = whole(split, total, limits.most_units)
    return Assignment(split=units, threads=_without_waste(fit, units, threads, upper, limits))


def _without_waste(
    fit: Fit, split: Sequence[int], threads: Threads, within_s: float, limits: AssignmentLimits
) -> Threads:
    """Threads that training does not need go to sampling and loading, where they are a margin."""
    host = fit.host
    if host is None or limits.threads_are_shared or not limits.most_units[host]:
        return threads
    needed = threads.train
    while needed > 1 and fit.trainer_s(host, split[host], needed - 1) <= _MARGIN * within_s:
        needed -= 1
    spare = threads.train - needed
    sample = round(spare * threads.sample / (threads.sample + threads.load))
    return Threads(sample=threads.sample + sample, load=threads.load + spare - sample, train=needed)


def _plan(
    fit: Fit, within_s: float, present: Assignment, limits: AssignmentLimits, total: int
) -> tuple[Threads, list[float]] | None:
    """Threads, and the units each trainer can do, with which a step takes no longer; None without any.

    Sought from the host trainer's present threads, and then from all that may be: with them it may take the
    units whose loading needs the others.
    """
    widest = within_capacities(fit, within_s, limits.cores, limits)
    # Threads make no trainer slower: what does not fit with all cores fits with none.
    if sum(widest) < total:
        return None

    def capacities(train: int) -> list[float]:
        """`within_capacities` with other threads, which only the host's own trainer has."""
        found, host = list(widest), fit.host
        if host is not None:
            found[host] = math.floor(min(fit.capacity(host, within_s, train), limits.most_units[host]))
        return found

    now, most = present.threads.train, limits.cores - 2
    found = _plan_from(now, capacities, fit, within_s, present, limits, total)
    if found is None and now < most and not limits.threads_are_shared and _host_trains(limits):
        found = _plan_from(most, capacities, fit, within_s, present, limits, total)
    return found


def _host_trains(limits: AssignmentLimits) -> bool:
    return any(host and most for host, most in zip(limits.is_host, limits.most_units, strict=True))


def _plan_from(
    train: int,
    capacities_with: Callable[[int], list[float]],
    fit: Fit,
    within_s: float,
    present: Assignment,
    limits: AssignmentLimits,
    total: int,
) -> tuple[Threads, list[float]] | None:
    """`_plan` from a number of threads of the host's trainer, and the capacities with any such number."""
    now, shares, trains = present.threads, limits.threads_are_shared, _host_trains(limits)
    counts = (0, 0)
    capacities = capacities_with(train)
    # Who gets the units says what sampling and loading need; what these need leaves threads to train.
    for _ in range(2):
        is_enough = sum(capacities) >= total
        most = capacities if is_enough else [float(units) for units in limits.most_units]
        split = lightest(fit, most, total, now, shares_cores=shares)
        sample = fit.sample.fewest_threads(fit.sample.work_s(split), within_s)
        load = fit.load.fewest_threads(fit.load.work_s(split), within_s)
        if max(sample, load) > limits.cores:
            return None
        counts = (int(sample), int(load))
        if not trains:
            if sum(counts) > limits.cores and not limits.threads_are_shared:
                return None
            break
        before, train = train, limits.cores if shares else limits.cores - sum(counts)
        if train < 1:
            return None
        if train == before:
            break
        capacities = capacities_with(train)
    if sum(capacities) < total:
        return None
    if limits.threads_are_shared:
        # Cores that do not have to be shared make every stage faster.
        split = lightest(fit, capacities, total, now, shares_cores=shares)
        kept = Threads(sample=max(counts[0], now.sample), load=max(counts[1], now.load), train=train)
        is_busy = fit.core_part * fit.core_s(split, kept) > _MARGIN * within_s
        threads = Threads(sample=counts[0], load=counts[1], train=train) if is_busy else kept
    else:
        threads = _threads(counts, train, present, limits, trains)
    if (
        fit.host_s(lightest(fit, capacities, total, threads, shares_cores=shares), threads)
        > within_s * 1.0001
    ):
        return None
    return threads, capacities


def _threads(
    counts: tuple[int, int], train: int, present: Assignment, limits: AssignmentLimits, trains: bool
) -> Threads:
    """Where nothing needs a core, it stays where it is."""
    sample, load = counts
    now = present.threads
    if trains:
        return Threads(sample=sample, load=load, train=train)
    free = limits.cores - sample - load
    kept = min(max(now.sample - sample, 0), free)
    sample += kept
    free -= kept
    kept = min(max(now.load - load, 0), free)
    load += kept
    free -= kept
    return Threads(sample=sample + free // 2, load=load + free - free // 2, train=now.train)


def within_capacities(fit: Fit, within_s: float, train_threads: int, limits: AssignmentLimits) -> list[float]:
    """Units that each trainer does in that time."""
    return [
        math.floor(min(fit.capacity(trainer, within_s, train_threads), most))
        for trainer, most in enumerate(limits.most_units)
    ]


def _nearest(present: Sequence[int], capacities: Sequence[float], total: int) -> list[float]:
    """A split within the capacities, near the present one: what is too much goes where there is room."""
    split = [min(float(units), most) for units, most in zip(present, capacities, strict=True)]
    missing = total - sum(split)
    room = [min(most, total) - units for units, most in zip(split, capacities, strict=True)]
    free = sum(room)
    if missing > 0 and free > 0:
        split = [units + missing * space / free for units, space in zip(split, room, strict=True)]
    return split


def lightest(
    fit: Fit, capacities: Sequence[float], total: int, threads: Threads, *, shares_cores: bool
) -> list[float]:
    """A split within the capacities, filled in the order of what units cost the host's stages."""
    costs = fit.unit_costs(capacities)
    split = _filled(costs, capacities, total)
    host = fit.host
    if not shares_cores or host is None or not capacities[host]:
        return split
    # What the host's own trainer computes keeps cores busy too.
    line = fit.propagate[host]
    if line is not None:
        costs[host] += line.seconds(capacities[host]) / capacities[host]
    other = _filled(costs, capacities, total)
    return min(split, other, key=lambda found: fit.host_s(found, threads))


def _filled(costs: Sequence[float], capacities: Sequence[float], total: int) -> list[float]:
    split = [0.0] * len(capacities)
    left = float(total)
    for trainer in sorted(range(len(split)), key=lambda index: costs[index]):
        split[trainer] = min(capacities[trainer], left)
        left -= split[trainer]
    return split


def _between(
    fit: Fit, near: Sequence[float], light: Sequence[float], threads: Threads, within_s: float
) -> list[float]:
    """As little of the way from the near split to the light one as makes the host's stages short enough."""
    low, high = 0.0, 1.0

    def at(part: float) -> list[float]:
        return [a + part * (b - a) for a, b in zip(near, light, strict=True)]

    for _ in range(8):
        middle = (low + high) / 2
        if fit.host_s(at(middle), threads) > within_s:
            low = middle
        else:
            high = middle
    return at(high)


def whole(split: Sequence[float], total: int, most: Sequence[int]) -> tuple[int, ...]:
    """Whole units with that total: those with the largest fractions are rounded up."""
    units = [min(math.floor(share + 1e-9), limit) for share, limit in zip(split, most, strict=True)]
    order = sorted(range(len(split)), key=lambda index: split[index] - units[index], reverse=True)
    left = total - sum(units)
    while left > 0:
        free = [index for index in order if units[index] < most[index]]
        if not free:
            break
        for index in free[:left]:
            units[index] += 1
        left = total - sum(units)
    return tuple(units)
