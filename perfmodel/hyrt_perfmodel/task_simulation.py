"""Discrete-event simulation of queued tasks that share cores, memory bandwidth and links."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Spans = list[tuple[float, float]]
"""List of (begin, end) pairs in any unit of time."""


def merge_spans(spans: Iterable[tuple[float, float]]) -> Spans:
    """Merge spans that touch or overlap, and return the result in order."""
    merged: Spans = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def total_length(spans: Spans) -> float:
    return sum(end - begin for begin, end in spans)


def overlap_length(first: Spans, second: Spans) -> float:
    """Return the total time in which spans of both merged lists overlap."""
    total, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        total += max(0.0, min(first[i][1], second[j][1]) - max(first[i][0], second[j][0]))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return total


def contended_rates(demands: Sequence[Sequence[float]], capacities: Sequence[float]) -> list[float]:
    """Return the speed of each user relative to its speed alone, above 0 and at most 1: [users].

    `demands` [users][resources] contains the demands at full speed, and `capacities` [resources] the
    capacities. The speeds of all users rise by the same factor until a resource is exhausted; users of other
    resources continue (max-min fairness by progressive filling: Bertsekas and Gallager, "Data Networks",
    section 6.5.2). Users of one resource therefore get shares in proportion to their demands, as threads that
    share cores do, and no resource has idle capacity that a user could use.
    """
    rates = [1.0] * len(demands)
    free = set(range(len(demands)))
    remaining = list(capacities)
    last_level = 0.0
    while free:
        level, scarce = 1.0, -1
        for resource, capacity in enumerate(remaining):
            demand = sum(demands[user][resource] for user in free)
            if demand * level > capacity:
                level, scarce = capacity / demand, resource
        if scarce < 0:
            break
        # Levels must increase monotonically: rounding could otherwise leave a user no capacity.
        last_level = level = max(level, last_level)
        for user in [user for user in free if demands[user][scarce] > 0]:
            rates[user] = level
            free.discard(user)
            for resource, amount in enumerate(demands[user]):
                remaining[resource] = max(0.0, remaining[resource] - amount * level)
    return rates


# Fraction of a task that may remain at its end because of rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """Task of a queue."""

    queue: str
    """Name of the queue, whose tasks run one at a time in the given order."""
    seconds: float
    """Duration without contention."""
    needs: tuple[int, ...] = ()
    """Indices of the earlier tasks that must have ended before this task begins."""
    uses: tuple[tuple[str, float], ...] = ()
    """Shared resources, and the demand for each at full speed."""
    name: str = ""


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """Start and end times of tasks."""

    begin_s: tuple[float, ...]
    end_s: tuple[float, ...]

    @property
    def total_s(self) -> float:
        """End time of the last task."""
        return max(self.end_s, default=0.0)


def run_tasks(tasks: Sequence[QueuedTask], capacities: Mapping[str, float]) -> TaskTimes:
    """Simulate tasks, which are listed in the order of their queues, event by event.

    A task begins when the previous task of its queue and all tasks that it needs have ended. Tasks that
    together exceed the capacity of a resource slow each other down: see `contended_rates`. Resources without
    an entry in `capacities` are unlimited. Raises ValueError if a task needs itself or a later task.
    """
    for number, task in enumerate(tasks):
        if any(not 0 <= other < number for other in task.needs):
            raise ValueError(
                f"task {number} ({task.name or task.queue}) needs task {max(task.needs)}, but a task may "
                "only need earlier tasks"
            )
    return _TaskRun(tasks, capacities).times()


class _TaskRun:
    """State of the simulation between two events."""

    def __init__(self, tasks: Sequence[QueuedTask], capacities: Mapping[str, float]) -> None:
        self._tasks = tasks
        self._names = tuple(capacities)
        self._capacities = tuple(capacities.values())
        self._begin = [0.0] * len(tasks)
        self._end = [math.inf] * len(tasks)
        self._num_missing = [len(set(task.needs)) for task in tasks]
        self._dependents: list[list[int]] = [[] for _ in tasks]
        self._queues: dict[str, list[int]] = {}
        for number, task in enumerate(tasks):
            self._queues.setdefault(task.queue, []).append(number)
            for other in set(task.needs):
                self._dependents[other].append(number)
        self._next = dict.fromkeys(self._queues, 0)
        # Remaining seconds of each running task at full speed.
        self._remaining: dict[int, float] = {}
        self._rates: dict[tuple[tuple[float, ...], ...], list[float]] = {}

    def times(self) -> TaskTimes:
        now = 0.0
        for queue in self._queues:
            self._begin_next(queue, now)
        while self._remaining:
            active = list(self._remaining)
            rates = self._active_rates(active)
            step = min(self._remaining[n] / rate for n, rate in zip(active, rates, strict=True))
            now += step
            ended = []
            for number, rate in zip(active, rates, strict=True):
                self._remaining[number] -= step * rate
                if self._remaining[number] <= _ROUNDING * self._tasks[number].seconds:
                    ended.append(number)
            for number in ended:
                self._end_task(number, now)
        return TaskTimes(tuple(self._begin), tuple(self._end))

    def _end_task(self, number: int, now: float) -> None:
        del self._remaining[number]
        self._end[number] = now
        queue = self._tasks[number].queue
        self._next[queue] += 1
        self._begin_next(queue, now)
        for other in self._dependents[number]:
            self._num_missing[other] -= 1
            if not self._num_missing[other]:
                self._begin_next(self._tasks[other].queue, now)

    def _begin_next(self, queue: str, now: float) -> None:
        numbers, position = self._queues[queue], self._next[queue]
        if (
            position < len(numbers)
            and numbers[position] not in self._remaining
            and not self._num_missing[numbers[position]]
        ):
            self._begin[numbers[position]] = now
            self._remaining[numbers[position]] = self._tasks[numbers[position]].seconds

    def _active_rates(self, active: Sequence[int]) -> list[float]:
        demands = []
        for number in active:
            uses = dict(self._tasks[number].uses)
            demands.append(tuple(uses.get(name, 0.0) for name in self._names))
        key = tuple(demands)
        if key not in self._rates:
            self._rates[key] = contended_rates(demands, self._capacities)
        return self._rates[key]
