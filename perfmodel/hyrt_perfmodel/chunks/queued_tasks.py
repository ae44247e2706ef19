"""Tasks in the queues of several devices: when each begins and ends where links and memory are shared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hyrt_perfmodel.simulation.shared_resources import shared_rates

# Of a task this part may be left to rounding when it ends.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class QueuedTask:
    """Something that one queue does."""

    queue: str
    """Its tasks run one at a time, in the order in which they are given."""
    seconds: float
    """How long it takes while nothing else is busy."""
    needs: tuple[int, ...] = ()
    """Numbers of earlier tasks that must have ended."""
    uses: tuple[tuple[str, float], ...] = ()
    """Shared resources, and what it uses of each while it goes at full speed."""
    name: str = ""
    """For people."""


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """When tasks run."""

    begin_s: tuple[float, ...]
    end_s: tuple[float, ...]
    """`begin_s` and `end_s`: of each task."""

    @property
    def total_s(self) -> float:
        """When the last one ends."""
        return max(self.end_s, default=0.0)


def run_tasks(tasks: Sequence[QueuedTask], capacities: Mapping[str, float]) -> TaskTimes:
    """Simulate tasks event by event.

    A task begins when its queue has ended the one before it and all that it needs has ended. Tasks that use
    more of a resource than there is slow each other: see `shared_rates`.

    Parameters
    ----------
    tasks
        In the order of their queues.
    capacities
        How much there is of each resource; of those that are not named there is enough.

    Raises
    ------
    ValueError
        If a task needs itself or a later one.
    """
    for number, task in enumerate(tasks):
        if any(not 0 <= other < number for other in task.needs):
            raise ValueError(
                f"task {number} ({task.name or task.queue}) needs task {max(task.needs)}: a task may need "
                "earlier ones only"
            )
    return _TaskRun(tasks, capacities).times()


class _TaskRun:
    """The state of a simulation between two events."""

    def __init__(self, tasks: Sequence[QueuedTask], capacities: Mapping[str, float]) -> None:
        self._tasks = tasks
        self._names = tuple(capacities)
        self._capacities = tuple(capacities.values())
        self._begin = [0.0] * len(tasks)
        self._end = [math.inf] * len(tasks)
        self._missing = [len(set(task.needs)) for task in tasks]
        self._waiting_for: list[list[int]] = [[] for _ in tasks]
        self._queues: dict[str, list[int]] = {}
        for number, task in enumerate(tasks):
            self._queues.setdefault(task.queue, []).append(number)
            for other in set(task.needs):
                self._waiting_for[other].append(number)
        self._next = dict.fromkeys(self._queues, 0)
        # What is left of each task under way, in seconds at full speed.
        self._left: dict[int, float] = {}
        self._rates: dict[tuple[tuple[float, ...], ...], list[float]] = {}

    def times(self) -> TaskTimes:
        """Run all tasks."""
        now = 0.0
        for queue in self._queues:
            self._begin_next(queue, now)
        while self._left:
            active = list(self._left)
            rates = self._rates_of(active)
            step = min(self._left[n] / rate for n, rate in zip(active, rates, strict=True))
            now += step
            ended = []
            for number, rate in zip(active, rates, strict=True):
                self._left[number] -= step * rate
                if self._left[number] <= _ROUNDING * self._tasks[number].seconds:
                    ended.append(number)
            for number in ended:
                self._end_task(number, now)
        return TaskTimes(tuple(self._begin), tuple(self._end))

    def _end_task(self, number: int, now: float) -> None:
        del self._left[number]
        self._end[number] = now
        queue = self._tasks[number].queue
        self._next[queue] += 1
        self._begin_next(queue, now)
        for other in self._waiting_for[number]:
            self._missing[other] -= 1
            if not self._missing[other]:
                self._begin_next(self._tasks[other].queue, now)

    def _begin_next(self, queue: str, now: float) -> None:
        numbers, at = self._queues[queue], self._next[queue]
        if at < len(numbers) and numbers[at] not in self._left and not self._missing[numbers[at]]:
            self._begin[numbers[at]] = now
            self._left[numbers[at]] = self._tasks[numbers[at]].seconds

    def _rates_of(self, active: Sequence[int]) -> list[float]:
        demands = []
        for number in active:
            uses = dict(self._tasks[number].uses)
            demands.append(tuple(uses.get(name, 0.0) for name in self._names))
        key = tuple(demands)
        if key not in self._rates:
            self._rates[key] = shared_rates(demands, self._capacities)
        return self._rates[key]
