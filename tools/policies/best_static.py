"""The best assignment that never changes, by search with the true model: the measure of policies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from hyrt_perfmodel.assignment import Assignment, Threads
from hyrt_perfmodel.prediction.stage_times import iteration_s
from policy_cases import PolicyCase


def best_static(case: PolicyCase, also: Iterable[Assignment] = ()) -> tuple[float, Assignment]:
    """Seconds and assignment, from many starts by moves that help.

    Parameters
    ----------
    case
        The machine and the workload.
    also
        Assignments to start from as well.
    """
    starts = [_filled(case, threads) for threads in _thread_choices(case)]
    starts.sort(key=lambda start: _cost(case, start))
    candidates = [*starts[:3], *also]
    # All on one trainer, as far as it holds.
    for trainer in range(len(case.limits.trainers)):
        candidates.append(replace(starts[0], split=_heap(case, trainer)))
    ranked = sorted(candidates, key=lambda start: _cost(case, start))
    found = [_climbed(case, start) for start in ranked[:4]]
    # What the equations leave out, stages that slow each other, the simulation knows.
    best = min((*found, *candidates[:3]), key=case.simulated_s)
    seconds = case.simulated_s(best)
    if seconds > 1.02 * case.seconds(best):
        best = _climbed_in_simulation(case, best)
        seconds = case.simulated_s(best)
    return seconds, best


def _cost(case: PolicyCase, assignment: Assignment) -> tuple[float, float]:
    """The iteration; of equal ones, the one whose stages are short."""
    times = case.times(assignment)
    whole = iteration_s(times, case.platform.host)
    parts = [times.sample_s, times.load_s, *times.trainer_transfer_s, *times.trainer_propagate_s]
    return whole, sum((part / whole) ** 8 for part in parts)


def _thread_choices(case: PolicyCase) -> list[Threads]:
    cores = case.limits.cores
    if case.limits.threads_are_shared:
        counts = (max(1, cores // 4), max(1, cores // 2), cores)
        return [Threads(sample=a, load=b, train=c) for a in counts for b in counts for c in counts[-1:]]
    counts = sorted({max(1, round(cores * part)) for part in (0.03, 0.08, 0.16, 0.3, 0.45, 0.6, 0.8)})
    found = []
    for sample in counts:
        for load in counts:
            if any(case.limits.is_host):
                if sample + load < cores:
                    found.append(Threads(sample=sample, load=load, train=cores - sample - load))
            elif sample < cores:
                found.append(Threads(sample=sample, load=cores - sample, train=1))
                break
    return found or [Threads(sample=1, load=1, train=max(1, cores - 2))]


def _filled(case: PolicyCase, threads: Threads) -> Assignment:
    """All trainers equally long busy, as far as their memory allows.

    Each gets the most that it does within a time, and the time is found by halving.
    """
    total, most = case.training.batch_size, case.limits.most_units
    count = len(most)

    def busy_s(split: Sequence[int]) -> list[float]:
        times = case.times(Assignment(split=tuple(split), threads=threads))
        return [max(pair) for pair in zip(times.trainer_transfer_s, times.trainer_propagate_s, strict=True)]

    def held(within_s: float) -> list[int]:
        low, high = [0] * count, list(most)
        while any(b - a > max(1, total // 500) for a, b in zip(low, high, strict=True)):
            middle = [(a + b + 1) // 2 for a, b in zip(low, high, strict=True)]
            fits = [seconds <= within_s for seconds in busy_s(middle)]
            low = [m if fit else a for a, m, fit in zip(low, middle, fits, strict=True)]
            high = [b if fit else m - 1 for b, m, fit in zip(high, middle, fits, strict=True)]
        return low

    least, longest = 0.0, max(busy_s(most))
    for _ in range(9):
        within_s = (least * longest) ** 0.5 if least else longest / 8
        if sum(held(within_s)) >= total:
            longest = within_s
        elif least and longest / least < 1.02:
            break
        else:
            least = within_s
    split = held(longest)
    return Assignment(split=_of_total(split, total, most), threads=threads)


def _of_total(split: Sequence[int], total: int, most: Sequence[int]) -> tuple[int, ...]:
    units = [int(share * total / sum(split)) if sum(split) > total else share for share in split]
    for index in sorted(range(len(units)), key=lambda index: units[index], reverse=True) * 2:
        units[index] += max(0, min(most[index] - units[index], total - sum(units)))
    return tuple(units)


def _heap(case: PolicyCase, first: int) -> tuple[int, ...]:
    split, left = [0] * len(case.limits.most_units), case.training.batch_size
    for index in [first, *(index for index in range(len(split)) if index != first)]:
        split[index] = min(case.limits.most_units[index], left)
        left -= split[index]
    return tuple(split)


def _climbed(case: PolicyCase, start: Assignment) -> Assignment:
    """Moves of targets between two trainers and of threads between two stages, as long as one helps."""
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


def _climbed_in_simulation(case: PolicyCase, start: Assignment) -> Assignment:
    """The same by simulated runs, with fewer and larger moves."""
    best, seconds, evaluations = start, case.simulated_s(start), 0
    step = max(1, case.training.batch_size // 4)
    while step and evaluations < 400:
        helped = False
        for candidate in (*_thread_moves(case, best), *_target_moves(case, best, step)):
            if not case.limits.allows(candidate):
                continue
            evaluations += 1
            found = case.simulated_s(candidate)
            if found < seconds * 0.998:
                best, seconds, helped = candidate, found, True
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
            amount = min(step, best.split[giver], case.limits.most_units[taker] - best.split[taker])
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
