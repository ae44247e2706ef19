"""Discrete-event simulation of the pipeline, with overlapping stages that slow each other down."""

from __future__ import annotations

import math
from collections import deque

from hyrt_perfmodel.simulation.shared_resources import shared_rates
from hyrt_perfmodel.simulation.simulated_step import Begin, End, SimulatedStep
from hyrt_perfmodel.simulation.step_profile import StepProfile

_SAMPLE, _LOAD, _FIRST_TRANSFER = 0, 1, 2

# Bits per kind of server in the packed counts of busy servers.
_BITS = 16

Kind = tuple[tuple[float, ...], tuple[float, ...]]
"""Demands and capacities; servers of one kind run at the same speed."""


def run_events(num_steps: int, num_trainers: int, depth: int, begin: Begin, end: End) -> None:
    """Run steps through the pipeline; parameters as in `run_recurrence`."""
    queue = EventQueue(num_steps, num_trainers, depth, begin, end)
    while queue.num_done < num_steps:
        queue.next_event()


class EventQueue:
    """Servers that each process one share at a time: sample, load, transfers, propagations, synchronize."""

    def __init__(self, num_steps: int, num_trainers: int, depth: int, begin: Begin, end: End) -> None:
        self.num_done = 0
        self._num_steps, self._trainers, self._depth = num_steps, num_trainers, depth
        self._begin, self._end = begin, end
        self._first_propagate = _FIRST_TRANSFER + num_trainers
        self._synchronize = self._first_propagate + num_trainers
        num_servers = self._synchronize + 1
        self._time_s = 0.0
        # Finish time of each server at current rates; infinite if the server is idle.
        self._finish_s = [math.inf] * num_servers
        self._start_s = [0.0] * num_servers
        self._rate = [1.0] * num_servers
        # Kind of each server's current work, and the busy servers that use shared resources.
        self._kind = [-1] * num_servers
        self._users: set[int] = set()
        self._is_full_rate = True
        self._current: list[SimulatedStep | None] = [None] * num_servers
        self._waiting: list[deque[SimulatedStep]] = [deque() for _ in range(num_servers)]
        # Next shares of the first two servers, and remaining propagations of the current step.
        self._sampling = self._loading = 0
        self._num_propagating = num_trainers
        self._num_started = 0
        # Packed counts of busy servers per kind, and the rates of the kinds as a function of the counts.
        self._busy = 0
        self._rates: dict[int, dict[int, float]] = {}
        self._kinds: dict[Kind, int] = {}
        self._kinds_of: dict[StepProfile, list[int]] = {}
        self._sample_next()

    def next_event(self) -> None:
        """Advance to the next finish time of a server."""
        self._update_rates()
        now_s = self._time_s = min(self._finish_s)
        server = self._finish_s.index(now_s)
        step = self._current[server]
        assert step is not None, "no server is busy, but steps are left"
        took_s = now_s - self._start_s[server]
        self._current[server] = None
        self._finish_s[server] = math.inf
        kind = self._kind[server]
        if kind >= 0:
            self._rate[server] = 1.0
            self._busy -= 1 << (_BITS * kind)
            self._users.discard(server)
        if server == _SAMPLE:
            self._on_sampled(step, took_s)
        elif server == _LOAD:
            self._on_loaded(step, took_s)
        elif server < self._first_propagate:
            step.transfer_s[server - _FIRST_TRANSFER] = took_s
            propagate = server + self._trainers
            self._waiting[propagate].append(step)
            self._propagate_next(propagate)
            if self._waiting[server]:
                self._transfer_next(server)
        elif server < self._synchronize:
            step.propagate_s[server - self._first_propagate] = took_s
            self._num_propagating -= 1
            if not self._num_propagating:
                self._start(self._synchronize, step, step.synchronize_s)
        else:
            self._on_synchronized(step, took_s)

    def _on_sampled(self, step: SimulatedStep, took_s: float) -> None:
        step.sample_s[self._sampling] = took_s
        self._sampling += 1
        self._waiting[_LOAD].append(step)
        if self._current[_LOAD] is None:
            self._load_next()
        if self._sampling < self._trainers:
            self._start(_SAMPLE, step, step.sample_s[self._sampling])
        else:
            self._sampling = 0
            self._sample_next()

    def _on_loaded(self, step: SimulatedStep, took_s: float) -> None:
        step.load_s[self._loading] = took_s
        transfer = _FIRST_TRANSFER + self._loading
        self._loading = (self._loading + 1) % self._trainers
        self._waiting[transfer].append(step)
        if self._current[transfer] is None:
            self._transfer_next(transfer)
        if self._waiting[_LOAD]:
            self._load_next()

    def _on_synchronized(self, step: SimulatedStep, took_s: float) -> None:
        step.synchronize_s = took_s
        step.done_s = self._time_s
        self.num_done += 1
        self._num_propagating = self._trainers
        self._end(step)
        for propagate in range(self._first_propagate, self._synchronize):
            self._propagate_next(propagate)
        if self._current[_SAMPLE] is None:
            self._sample_next()

    def _sample_next(self) -> None:
        """Begin a step if there is one and fewer than `depth` steps are in flight."""
        if self._num_started < min(self._num_steps, self.num_done + self._depth):
            step = self._begin(self._num_started)
            self._num_started += 1
            step.started_s = self._time_s
            self._start(_SAMPLE, step, step.sample_s[0])

    def _load_next(self) -> None:
        step = self._waiting[_LOAD].popleft()
        self._start(_LOAD, step, step.load_s[self._loading])

    def _transfer_next(self, server: int) -> None:
        step = self._waiting[server].popleft()
        self._start(server, step, step.transfer_s[server - _FIRST_TRANSFER])

    def _propagate_next(self, server: int) -> None:
        """Propagate transferred work once the previous step has updated the weights."""
        waiting = self._waiting[server]
        if waiting and waiting[0].step == self.num_done:
            step = waiting.popleft()
            self._start(server, step, step.propagate_s[server - self._first_propagate])

    def _start(self, server: int, step: SimulatedStep, seconds: float) -> None:
        self._current[server] = step
        self._start_s[server] = self._time_s
        self._finish_s[server] = self._time_s + seconds
        profile = step.profile
        kinds = self._kinds_of.get(profile)
        if kinds is None:
            kinds = self._kinds_of[profile] = self._new_kinds(profile)
        kind = self._kind[server] = kinds[server]
        if kind >= 0:
            self._busy += 1 << (_BITS * kind)
            self._users.add(server)

    def _new_kinds(self, profile: StepProfile) -> list[int]:
        """Return the kind of each server's work in a step; -1 if it uses no shared resource."""
        return [
            self._kinds.setdefault((row, profile.capacities), len(self._kinds)) if any(row) else -1
            for row in profile.demands
        ]

    def _update_rates(self) -> None:
        """Update the rate of every busy server, and reschedule its remaining work."""
        rates = self._rates.get(self._busy)
        if rates is None:
            rates = self._rates[self._busy] = self._busy_rates()
        if not rates and self._is_full_rate:
            return
        now_s, finish_s, kinds, current = self._time_s, self._finish_s, self._kind, self._rate
        for server in self._users:
            rate = rates.get(kinds[server], 1.0)
            if rate != current[server]:
                finish_s[server] = now_s + (finish_s[server] - now_s) * current[server] / rate
                current[server] = rate
        self._is_full_rate = not rates

    def _busy_rates(self) -> dict[int, float]:
        """Return the rates by kind; empty if no server slows another down."""
        users = [self._kind[server] for server in sorted(self._users)]
        if not users:
            return {}
        kinds = list(self._kinds)
        # If steps before and after a change overlap, the later step's capacities apply.
        capacities = kinds[max(users)][1]
        shared = shared_rates([kinds[kind][0] for kind in users], capacities)
        return {} if min(shared) == 1.0 else dict(zip(users, shared, strict=True))
