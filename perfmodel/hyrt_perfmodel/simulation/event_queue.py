"""The pipeline event by event, where stages that overlap slow each other."""

from __future__ import annotations

import math
from collections import deque

from hyrt_perfmodel.simulation.shared_resources import shared_rates
from hyrt_perfmodel.simulation.simulated_step import Begin, End, SimulatedStep
from hyrt_perfmodel.simulation.step_profile import StepProfile

_SAMPLE, _LOAD, _FIRST_TRANSFER = 0, 1, 2

# Bits for the servers of one kind in the count of what is busy.
_BITS = 16

Kind = tuple[tuple[float, ...], tuple[float, ...]]
"""Demands and capacities: servers of one kind go equally fast."""


def run_events(num_steps: int, num_trainers: int, depth: int, begin: Begin, end: End) -> None:
    """Run steps through the pipeline; the parameters are those of `run_recurrence`."""
    queue = EventQueue(num_steps, num_trainers, depth, begin, end)
    while queue.num_done < num_steps:
        queue.next_event()


class EventQueue:
    """Servers that each work on one share at a time: sample, load, transfers, propagations, synchronize."""

    def __init__(self, num_steps: int, num_trainers: int, depth: int, begin: Begin, end: End) -> None:
        self.num_done = 0
        self._num_steps, self._trainers, self._depth = num_steps, num_trainers, depth
        self._begin, self._end = begin, end
        self._first_propagate = _FIRST_TRANSFER + num_trainers
        self._synchronize = self._first_propagate + num_trainers
        servers = self._synchronize + 1
        self._now_s = 0.0
        # When each server is through, at the present rates; infinite where it is idle.
        self._finish_s = [math.inf] * servers
        self._began_s = [0.0] * servers
        self._rate = [1.0] * servers
        # The kind of what each server does, and the busy ones that use what others do.
        self._kind = [-1] * servers
        self._users: set[int] = set()
        self._is_full_rate = True
        self._doing: list[SimulatedStep | None] = [None] * servers
        self._waiting: list[deque[SimulatedStep]] = [deque() for _ in range(servers)]
        # Shares that come next to the first two servers, and propagations that the step still waits for.
        self._sampling = self._loading = 0
        self._left = num_trainers
        self._num_begun = 0
        # Busy servers of each kind, counted in one number, and the kinds' rates that follow from it.
        self._busy = 0
        self._rates: dict[int, dict[int, float]] = {}
        self._kinds: dict[Kind, int] = {}
        self._kinds_of: dict[StepProfile, list[int]] = {}
        self._sample_next()

    def next_event(self) -> None:
        """Go on to when the next server is through."""
        self._share()
        now_s = self._now_s = min(self._finish_s)
        server = self._finish_s.index(now_s)
        step = self._doing[server]
        assert step is not None, "no server is busy, but steps are left"
        took_s = now_s - self._began_s[server]
        self._doing[server] = None
        self._finish_s[server] = math.inf
        kind = self._kind[server]
        if kind >= 0:
            self._rate[server] = 1.0
            self._busy -= 1 << (_BITS * kind)
            self._users.discard(server)
        if server == _SAMPLE:
            self._sampled(step, took_s)
        elif server == _LOAD:
            self._loaded(step, took_s)
        elif server < self._first_propagate:
            step.transfer_s[server - _FIRST_TRANSFER] = took_s
            propagate = server + self._trainers
            self._waiting[propagate].append(step)
            self._propagate_next(propagate)
            if self._waiting[server]:
                self._transfer_next(server)
        elif server < self._synchronize:
            step.propagate_s[server - self._first_propagate] = took_s
            self._left -= 1
            if not self._left:
                self._start(self._synchronize, step, step.synchronize_s)
        else:
            self._synchronized(step, took_s)

    def _sampled(self, step: SimulatedStep, took_s: float) -> None:
        step.sample_s[self._sampling] = took_s
        self._sampling += 1
        self._waiting[_LOAD].append(step)
        if self._doing[_LOAD] is None:
            self._load_next()
        if self._sampling < self._trainers:
            self._start(_SAMPLE, step, step.sample_s[self._sampling])
        else:
            self._sampling = 0
            self._sample_next()

    def _loaded(self, step: SimulatedStep, took_s: float) -> None:
        step.load_s[self._loading] = took_s
        transfer = _FIRST_TRANSFER + self._loading
        self._loading = (self._loading + 1) % self._trainers
        self._waiting[transfer].append(step)
        if self._doing[transfer] is None:
            self._transfer_next(transfer)
        if self._waiting[_LOAD]:
            self._load_next()

    def _synchronized(self, step: SimulatedStep, took_s: float) -> None:
        step.synchronize_s = took_s
        step.done_s = self._now_s
        self.num_done += 1
        self._left = self._trainers
        self._end(step)
        for propagate in range(self._first_propagate, self._synchronize):
            self._propagate_next(propagate)
        if self._doing[_SAMPLE] is None:
            self._sample_next()

    def _sample_next(self) -> None:
        """Begin a step if there is one and a credit for it."""
        if self._num_begun < min(self._num_steps, self.num_done + self._depth):
            step = self._begin(self._num_begun)
            self._num_begun += 1
            step.started_s = self._now_s
            self._start(_SAMPLE, step, step.sample_s[0])

    def _load_next(self) -> None:
        step = self._waiting[_LOAD].popleft()
        self._start(_LOAD, step, step.load_s[self._loading])

    def _transfer_next(self, server: int) -> None:
        step = self._waiting[server].popleft()
        self._start(server, step, step.transfer_s[server - _FIRST_TRANSFER])

    def _propagate_next(self, server: int) -> None:
        """Propagate what has been transferred, with the weights of the step before."""
        waiting = self._waiting[server]
        if waiting and waiting[0].step == self.num_done:
            step = waiting.popleft()
            self._start(server, step, step.propagate_s[server - self._first_propagate])

    def _start(self, server: int, step: SimulatedStep, seconds: float) -> None:
        self._doing[server] = step
        self._began_s[server] = self._now_s
        self._finish_s[server] = self._now_s + seconds
        profile = step.profile
        kinds = self._kinds_of.get(profile)
        if kinds is None:
            kinds = self._kinds_of[profile] = self._new_kinds(profile)
        kind = self._kind[server] = kinds[server]
        if kind >= 0:
            self._busy += 1 << (_BITS * kind)
            self._users.add(server)

    def _new_kinds(self, profile: StepProfile) -> list[int]:
        """Numbers of what the servers need for a step; -1 where that is nothing that others use."""
        return [
            self._kinds.setdefault((row, profile.capacities), len(self._kinds)) if any(row) else -1
            for row in profile.demands
        ]

    def _share(self) -> None:
        """Give every busy server its rate; what is left of its work takes longer or shorter from now on."""
        rates = self._rates.get(self._busy)
        if rates is None:
            rates = self._rates[self._busy] = self._rates_of_busy()
        if not rates and self._is_full_rate:
            return
        now_s, finish_s, kinds, present = self._now_s, self._finish_s, self._kind, self._rate
        for server in self._users:
            rate = rates.get(kinds[server], 1.0)
            if rate != present[server]:
                finish_s[server] = now_s + (finish_s[server] - now_s) * present[server] / rate
                present[server] = rate
        self._is_full_rate = not rates

    def _rates_of_busy(self) -> dict[int, float]:
        """By kind; empty where nobody slows another."""
        users = [self._kind[server] for server in sorted(self._users)]
        if not users:
            return {}
        known = list(self._kinds)
        # While steps before and after a change overlap, the machine is as it was seen later.
        capacities = known[max(users)][1]
        shared = shared_rates([known[kind][0] for kind in users], capacities)
        return {} if min(shared) == 1.0 else dict(zip(users, shared, strict=True))
