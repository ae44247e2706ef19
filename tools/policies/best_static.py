"""Search for the best static assignment with the true model, as a reference for policies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.stage_times import iteration_s
from policy_cases import PolicyCase


def best_static(case: PolicyCase, also: Iterable[Assignment] = ()) -> tuple[float, Assignment]:
    """Return the seconds and the best static assignment, found by local search from many starts.

    Parameters
    ----------
    case
        Machine and workload.
    also
        Additional starting assignments.
    """
    starts = [_fill_assignment(case, threads) for threads in _thread_choices(case)]
    starts.sort(key=lambda start: _cost(case, start))
    candidates = [*starts[:3], *also]
    # Add an assignment of everything to this trainer, up to its capacity.
    for trainer in range(len(case.limits.trainers)):
        candidates.append(replace(starts[0], split=_heap(case, trainer)))
    ranked = sorted(candidates, key=lambda start: _cost(case, start))
    improved = [_climb(case, start) for start in ranked[:4]]
    # Compare in the simulation, which includes contention between stages, unlike the equations.
    best = min((*improved, *candidates[:3]), key=case.simulated_s)
    seconds = case.simulated_s(best)
    if seconds > 1.02 * case.seconds(best):
        best = _climb_in_simulation(case, best)
        seconds = case.simulated_s(best)
    return seconds, best


def _cost(case: PolicyCase, assignment: Assignment) -> tuple[float, float]:
    """Return the iteration time, and the sum of the stage times to break ties."""
    times = case.times(assignment)
    iteration = iteration_s(times, case.platform.host)
    parts = [times.sample_s, times.load_s, *times.trainer_transfer_s, *times.trainer_propagate_s]
    return iteration, sum((part / iteration) ** 8 for part in parts)


def _thread_choices(case: PolicyCase) -> list[Threads]:
    cores = case.limits.cores
    if case.limits.threads_are_shared:
        counts = (max(1, cores // 4), max(1, cores // 2), cores)
        return [Threads(sample=a, load=b, train=c) for a in counts for b in counts for c in counts[-1:]]
    counts = sorted({max(1, round(cores * part)) for part in (0.03, 0.08, 0.16, 0.3, 0.45, 0.6, 0.8)})
    choices = []
    for sample in counts:
        for load in counts:
            if any(case.limits.is_host):
                if sample + load < cores:
                    choices.append(Threads(sample=sample, load=load, train=cores - sample - load))
            elif sample < cores:
                choices.append(Threads(sample=sample, load=cores - sample, train=1))
                break
    return choices or [Threads(sample=1, load=1, train=max(1, cores - 2))]


def _fill_assignment(case: PolicyCase, threads: Threads) -> Assignment:
    """Return an assignment in which all trainers take the same time, within their memory limits.

    Each trainer gets the maximum work within a time, which bisection finds.
    """
    total, max_units = case.training.batch_size, case.limits.max_units
    count = len(max_units)

    def busy_s(split: Sequence[int]) -> list[float]:
        times = case.times(Assignment(split=tuple(split), threads=threads))
        return [max(pair) for pair in zip(times.trainer_transfer_s, times.trainer_propagate_s, strict=True)]

    def held(within_s: float) -> list[int]:
        low, high = [0] * count, list(max_units)
        while any(b - a > max(1, total // 500) for a, b in zip(low, high, strict=True)):
            middle = [(a + b + 1) // 2 for a, b in zip(low, high, strict=True)]
            fits = [seconds <= within_s for seconds in busy_s(middle)]
            low = [m if fit else a for a, m, fit in zip(low, middle, fits, strict=True)]
            high = [b if fit else m - 1 for b, m, fit in zip(high, middle, fits, strict=True)]
        return low

    shortest, longest = 0.0, max(busy_s(max_units))
    for _ in range(9):
        within_s = (shortest * longest) ** 0.5 if shortest else longest / 8
        if sum(held(within_s)) >= total:
            longest = within_s
        elif shortest and longest / shortest < 1.02:
            break
        else:
            shortest = within_s
    split = held(longest)
    return Assignment(split=_scale_to_total(split, total, max_units), threads=threads)


def _scale_to_total(split: Sequence[int], total: int, max_units: Sequence[int]) -> tuple[int, ...]:
    units = [int(share * total / sum(split)) if sum(split) > total else share for share in split]
    for index in sorted(range(len(units)), key=lambda index: units[index], reverse=True) * 2:
        units[index] += max(0, min(max_units[index] - units[index], total - sum(units)))
    return tuple(units)


def _heap(case: PolicyCase, first: int) -> tuple[int, ...]:
    split, left = [0] * len(case.limits.max_units), case.training.batch_size
    for index in [first, *(index for index in range(len(split)) if index != first)]:
        split[index] = min(case.limits.max_units[index], left)
        left -= split[index]
    return tuple(split)


def _climb(case: PolicyCase, start: Assignment) -> Assignment:
    """Improve an assignment by moving targets between two trainers and threads between two stages."""
    best, cost = start, _cost(case, start)
    step = max(1, case.training.batch_size // 8)
    evaluations = 0
    while step and evaluations < 4000:
        helped = False
        for candidate in (*_thread_moves(case, best), *_target_moves(case, best, step)):
            evaluations += 1
            if not case.limits.allows(candidate):
                continue
            seconds = _cost(case, candidate)
            if seconds < cost and (seconds[0] < cost[0] * 0.9995 or seconds[1] < cost[1] * 0.99):
                best, cost, helped = candidate, seconds, True
                break
        if not helped:
            step = step // 2 if step > case.training.batch_size // 500 else 0
    return best


def _climb_in_simulation(case: PolicyCase, start: Assignment) -> Assignment:
    """Improve an assignment with simulated runs, trying fewer and larger moves."""
    best, seconds, evaluations = start, case.simulated_s(start), 0
    step = max(1, case.training.batch_size // 4)
    while step and evaluations < 400:
        helped = False
        for candidate in (*_thread_moves(case, best), *_target_moves(case, best, step)):
            if not case.limits.allows(candidate):
                continue
            evaluations += 1
            candidate_s = case.simulated_s(candidate)
            if candidate_s < seconds * 0.998:
                best, seconds, helped = candidate, candidate_s, True
                break
        if not helped:
            step = step // 2 if step > case.training.batch_size // 40 else 0
    return best


def _target_moves(case: PolicyCase, best: Assignment, step: int) -> Iterable[Assignment]:
    times = case.times(best)
    busy = [max(pair) for pair in zip(times.trainer_transfer_s, times.trainer_propagate_s, strict=True)]
    order = sorted(range(len(busy)), key=lambda index: busy[index])
    for giver in reversed(order):
        if not best.split[giver]:
            continue
        for taker in order:
            amount = min(step, best.split[giver], case.limits.max_units[taker] - best.split[taker])
            if taker != giver and amount > 0:
                split = list(best.split)
                split[giver] -= amount
                split[taker] += amount
                yield replace(best, split=tuple(split))


def _thread_moves(case: PolicyCase, best: Assignment) -> Iterable[Assignment]:
    stages = ("sample", "load", "train") if any(case.limits.is_host) else ("sample", "load")
    threads = {stage: getattr(best.threads, stage) for stage in ("sample", "load", "train")}
    if case.limits.threads_are_shared:
        for stage in stages:
            for amount in (case.limits.cores // 4, 1, -1, -(case.limits.cores // 4)):
                if threads[stage] + amount >= 1:
                    yield replace(best, threads=Threads(**{**threads, stage: threads[stage] + amount}))
        return
    for amount in (max(1, case.limits.cores // 16), 1):
        for giver in stages:
            for taker in stages:
                if giver != taker and threads[giver] > amount:
                    after = {**threads, giver: threads[giver] - amount, taker: threads[taker] + amount}
                    yield replace(best, threads=Threads(**after))
