"""The initial assignment: the split and the threads with the shortest predicted iteration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hyrt_perfmodel.assignment import Assignment, Threads
from hyrt_perfmodel.platforms.platform import Host, Platform
from hyrt_perfmodel.prediction.extra_terms import Terms
from hyrt_perfmodel.prediction.memory import most_that, most_units
from hyrt_perfmodel.prediction.stage_times import StepModel, host_trainers, iteration_s
from hyrt_perfmodel.workloads.workload import TrainingWorkload

_NEAR_ENOUGH = 1e-5
# Thread counts that change less do not matter.
_WORTH = 1e-6
# A split that is not balanced must be worth it: equal trainers get equal parts where it hardly matters.
_WORTH_MOVING = 2e-3
_MOST_TRIED = 300


def initial_assignment(
    platform: Platform,
    training: TrainingWorkload,
    *,
    terms: Terms | None = None,
    threads: Threads | None = None,
) -> Assignment:
    """Choose split and threads.

    For each way to share the threads: the split with which all trainers take equally long, found by bisection
    on that time, since a trainer's time only grows with its targets. Then single trainers are tried without
    work, because a trainer's fixed costs, or what its loading takes, can outweigh what it does. Last, targets
    are moved between two trainers and threads between stages, as long as that helps: where a stage on the
    host is the bottleneck, equal times are not best.

    Parameters
    ----------
    platform, training
        The machine and the work.
    terms
        Beyond the paper's; all of them by default.
    threads
        The threads, where they are fixed and only the split is to be chosen.

    Raises
    ------
    ValueError
        If the trainers' memories together do not hold a step.
    """
    terms = Terms() if terms is None else terms
    most = [
        training.batch_size if trainer.is_host else most_units(trainer, training)
        for trainer in platform.trainers(training.model)
    ]
    if sum(most) < training.batch_size and training.resident:
        raise ValueError(
            "the whole graph does not fit the memory of any trainer: take mini-batches (without --full-graph)"
        )
    if sum(most) < training.batch_size:
        raise ValueError(
            f"a step of {training.batch_size} targets does not fit: the trainers have memory for "
            f"{sum(most)}. Lower data.batch_size or sampler.fanout"
        )
    model = StepModel(platform, training.remembered(), terms)
    costs = _Costs(model)

    def candidate(split: Sequence[int], threads: Threads) -> tuple[float, Assignment]:
        assignment = Assignment(split=tuple(split), threads=threads)
        return iteration_s(model.times(assignment), platform.host, terms), assignment

    def balanced(threads: Threads) -> tuple[float, Assignment]:
        return candidate(equal_times(costs.of(threads), most, training.batch_size), threads)

    choices = _coarse_threads(platform.host) if threads is None else [threads]
    best = min((balanced(choice) for choice in choices), key=_seconds)
    improved = threads is None
    while improved:
        tried = [balanced(near) for near in _near_threads(best[1].threads, platform.host)]
        found = min(tried, key=_seconds, default=best)
        improved = found[0] < best[0] * (1 - _WORTH)
        best = found if improved else best
    # One after the other, the trainer that does least goes without.
    allowed, split, chosen = list(most), best[1].split, best[1].threads
    while sum(1 for units in split if units) > 1:
        allowed[min((i for i, units in enumerate(split) if units), key=lambda i: (split[i], -i))] = 0
        if sum(allowed) < training.batch_size:
            break
        split = tuple(equal_times(costs.of(chosen), allowed, training.batch_size))
        best = min(best, candidate(split, chosen), key=_seconds)
    # Trainers of one kind alone: with others on the same cores they may do less than by themselves.
    for kind in sorted(set(costs.kinds)):
        only = [units if kind == other else 0 for units, other in zip(most, costs.kinds, strict=True)]
        if sum(only) >= training.batch_size:
            split = tuple(equal_times(costs.of(chosen), only, training.batch_size))
            best = min(best, candidate(split, chosen), key=_seconds)
    evaluated = 0
    while evaluated < _MOST_TRIED:
        now = best[1]
        nearby = [candidate(split, now.threads) for split in _moved(now.split, most, costs.kinds)]
        nearby.append(candidate(_evened(now.split, most, costs.kinds), now.threads))
        if threads is None:
            nearby += [candidate(now.split, near) for near in _near_threads(now.threads, platform.host)]
        evaluated += len(nearby)
        closest = min(nearby, key=_seconds, default=best)
        if closest[0] >= best[0] * (1 - _WORTH_MOVING):
            break
        best = closest
    # Equal trainers do equally much, unless that costs time.
    even = candidate(_evened(best[1].split, most, costs.kinds), best[1].threads)
    return (even if even[0] <= best[0] * (1 + 1e-9) else best)[1]


def _evened(split: Sequence[int], most: Sequence[int], kinds: Sequence[int]) -> tuple[int, ...]:
    """The split with what equal trainers have shared out equally among them."""
    found = list(split)
    for kind in set(kinds):
        mine = [i for i, other in enumerate(kinds) if other == kind]
        each, left = divmod(sum(split[i] for i in mine), len(mine))
        for place, i in enumerate(mine):
            found[i] = each + (place < left)
    return tuple(found) if all(n <= m for n, m in zip(found, most, strict=True)) else tuple(split)


def _moved(split: Sequence[int], most: Sequence[int], kinds: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Splits with some targets of one trainer at another; equal trainers stand for each other."""
    alike: dict[tuple[int, int], list[int]] = {}
    for i, units in enumerate(split):
        alike.setdefault((kinds[i], units), []).append(i)
    for givers in alike.values():
        giver = givers[-1]
        for takers in alike.values():
            taker = takers[0]
            amount = min(split[giver], most[taker] - split[taker])
            while amount and taker != giver:
                moved = list(split)
                moved[giver] -= amount
                moved[taker] += amount
                yield tuple(moved)
                amount //= 2


def _seconds(candidate: tuple[float, Assignment]) -> float:
    return candidate[0]


class _Costs:
    """Each trainer's seconds for a number of targets: transfer, or propagation with synchronization."""

    def __init__(self, model: StepModel) -> None:
        self._model = model
        self._known: dict[tuple[int, int], dict[float, float]] = {}
        self._synchronize_s = model.synchronize_s(host_trainers(model.trainers))
        # Equal accelerators cost the same, whatever their number.
        alike = [replace(trainer, name=trainer.name.partition(":")[0]) for trainer in model.trainers]
        self.kinds = [alike.index(kind) for kind in alike]

    def of(self, threads: Threads) -> list[Callable[[float], float]]:
        """One function a trainer; equal trainers have the same one."""
        made: dict[int, Callable[[float], float]] = {}
        found = []
        for number in self.kinds:
            if number not in made:
                made[number] = self._cost(number, threads)
            found.append(made[number])
        return found

    def _cost(self, number: int, threads: Threads) -> Callable[[float], float]:
        model, trainer = self._model, self._model.trainers[number]
        known = self._known.setdefault((number, threads.train if trainer.is_host else 0), {0: 0.0})

        def seconds(targets: float) -> float:
            if targets not in known:
                work = model.training.at(targets)
                propagate_s = model.propagate_s(trainer, work, threads) + self._synchronize_s
                known[targets] = max(model.transfer_s(trainer, work), propagate_s)
            return known[targets]

        return seconds


def equal_times(costs: Sequence[Callable[[float], float]], most: Sequence[int], total: int) -> list[int]:
    """The split of `total` targets with which the slowest trainer is fastest.

    Parameters
    ----------
    costs
        Each trainer's seconds for a number of targets, growing with it.
    most
        The most each may get; together at least `total`.
    total
        Targets of a step.

    Raises
    ------
    OverflowError
        If a trainer's seconds are beyond what a number holds.
    """
    high = max(cost(min(limit, total)) for cost, limit in zip(costs, most, strict=True) if limit)
    if not math.isfinite(high):
        raise OverflowError(f"{total} targets on one trainer take {high} s")
    low = 0.0
    # What is left over is taken back one by one.
    near = min(_NEAR_ENOUGH, 1 / total)
    while high - low > near * high:
        middle = (low + high) / 2
        units = sum(_each_within(costs, most, middle, total))
        if units >= total:
            high = middle
        else:
            low = middle
        if units == total:
            break
    split = _each_within(costs, most, high, total)
    surplus = sum(split) - total
    while surplus > 0:
        # From whoever would take longest; of equal ones the last, so that equal trainers differ by at most 1.
        giver = max((i for i, units in enumerate(split) if units), key=lambda i: (costs[i](split[i]), i))
        split[giver] -= 1
        surplus -= 1
    return split


def _each_within(
    costs: Sequence[Callable[[float], float]], most: Sequence[int], seconds: float, total: int
) -> list[int]:
    def units(cost: Callable[[float], float], limit: int) -> int:
        return most_that(min(limit, total), lambda count: cost(count) <= seconds)

    pairs = list(zip(costs, most, strict=True))
    known = {pair: units(*pair) for pair in set(pairs)}
    return [known[pair] for pair in pairs]


def _coarse_threads(host: Host) -> list[Threads]:
    """Ways to share the threads, in powers of two."""
    cores = host.cores or 1
    powers = sorted({*(2**i for i in range(cores.bit_length())), cores})
    found = [_threads(sample, load, host) for sample in powers for load in powers if load <= cores]
    return [threads for threads in found if threads is not None] or [Threads(sample=1, load=1, train=1)]


def _near_threads(threads: Threads, host: Host) -> list[Threads]:
    """Ways that differ by about an eighth in sampling, loading or both."""
    found = [
        _threads(sample, load, host)
        for sample in _near(threads.sample)
        for load in _near(threads.load)
        if (sample, load) != (threads.sample, threads.load)
    ]
    return [near for near in found if near is not None]


def _near(count: int) -> list[int]:
    step = max(1, count // 8)
    return [count + change for change in (-step, -1, 0, 1, step) if count + change >= 1]


def _threads(sample: int, load: int, host: Host) -> Threads | None:
    """The CPU trainer gets what is left, or all where stages share the cores; None where it does not fit."""
    cores = host.cores or 1
    if host.loading:
        return Threads(sample=sample, load=load, train=cores) if max(sample, load) <= cores else None
    left = cores - sample - load
    if left < (1 if host.trains else 0):
        return None
    return Threads(sample=sample, load=load, train=max(1, left))
