"""Simulation of the four-stage pipeline on a described machine, including a balancing policy."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.platform import Platform
from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Decision, Observation, Policy
from hyrt_perfmodel.prediction.stages import ExtraTerms
from hyrt_perfmodel.prediction.step_profile import (
    BeginCallback,
    EndCallback,
    Perturbation,
    SimulatedStep,
    StepProfile,
    can_slow,
    check_perturbations,
    has_shared_resources,
    noise_factors,
    speeds_at,
    step_profile,
    with_noise,
)
from hyrt_perfmodel.task_simulation import contended_rates
from hyrt_perfmodel.validation import check_kind, check_size
from hyrt_perfmodel.workload import TrainingWorkload


def run_recurrence(
    num_steps: int, num_trainers: int, depth: int, begin: BeginCallback, end: EndCallback
) -> None:
    """Run steps through the pipeline one after the other (a max-plus recurrence over steps).

    At most `depth` steps are in flight: `end` of step i, which is called when it is synchronized, precedes
    `begin` of step i + depth.
    """
    sampled_s = loaded_s = 0.0
    transferred_s = [0.0] * num_trainers
    done_s = deque([0.0] * depth, maxlen=depth)
    for number in range(num_steps):
        step = begin(number)
        sampled_s = max(sampled_s, done_s[0])
        step.started_s = sampled_s
        weights_s = done_s[-1]
        last_s = weights_s
        for trainer, (sample_s, load_s, transfer_s, propagate_s) in enumerate(
            zip(step.sample_s, step.load_s, step.transfer_s, step.propagate_s, strict=True)
        ):
            sampled_s += sample_s
            loaded_s = max(sampled_s, loaded_s) + load_s
            staged_s = max(loaded_s, transferred_s[trainer]) + transfer_s
            transferred_s[trainer] = staged_s
            last_s = max(last_s, max(staged_s, weights_s) + propagate_s)
        step.done_s = last_s + step.synchronize_s
        done_s.append(step.done_s)
        end(step)


_SAMPLE, _LOAD, _FIRST_TRANSFER = 0, 1, 2

# Number of bits for each kind of server in the packed counts of busy servers.
_BITS = 16

Kind = tuple[tuple[float, ...], tuple[float, ...]]
"""(demands, capacities) of a kind of servers, which all run at the same speed."""


def run_events(num_steps: int, num_trainers: int, depth: int, begin: BeginCallback, end: EndCallback) -> None:
    """Run steps through the pipeline event by event. Parameters are those of `run_recurrence`."""
    queue = EventQueue(num_steps, num_trainers, depth, begin, end)
    while queue.num_done < num_steps:
        queue.next_event()


class EventQueue:
    """Servers that process one share at a time: sample, load, transfers, propagations, synchronize."""

    def __init__(
        self, num_steps: int, num_trainers: int, depth: int, begin: BeginCallback, end: EndCallback
    ) -> None:
        self.num_done = 0
        self._num_steps, self._trainers, self._depth = num_steps, num_trainers, depth
        self._begin, self._end = begin, end
        self._first_propagate = _FIRST_TRANSFER + num_trainers
        self._synchronize = self._first_propagate + num_trainers
        num_servers = self._synchronize + 1
        self._time_s = 0.0
        # Finish time of each server at the current rates; infinite if it is idle.
        self._finish_s = [math.inf] * num_servers
        self._start_s = [0.0] * num_servers
        self._rate = [1.0] * num_servers
        # Kind of each server's current work, and the busy servers that use shared resources.
        self._kind = [-1] * num_servers
        self._users: set[int] = set()
        self._is_full_rate = True
        self._current: list[SimulatedStep | None] = [None] * num_servers
        self._waiting: list[deque[SimulatedStep]] = [deque() for _ in range(num_servers)]
        # Next shares of the servers for sampling and loading, and remaining propagations of the current step.
        self._sampling = self._loading = 0
        self._num_propagating = num_trainers
        self._num_started = 0
        # Packed counts of busy servers by kind, and the rates of the kinds for each value of the counts.
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
        """Begin the next step, if there is one and fewer than `depth` steps are in flight."""
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
        """Begin to propagate transferred work if the previous step has updated the weights."""
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
        """Return the kind of each server's work in a step, or -1 if it uses no shared resource."""
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
        """Return the rates by kind, which are empty if no server slows another one down."""
        users = [self._kind[server] for server in sorted(self._users)]
        if not users:
            return {}
        kinds = list(self._kinds)
        # If steps before and after a change overlap, the capacities of the later step apply.
        capacities = kinds[max(users)][1]
        shared = contended_rates([kinds[kind][0] for kind in users], capacities)
        return {} if min(shared) == 1.0 else dict(zip(users, shared, strict=True))


Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Simulation:
    """Result of a simulated run."""

    started_s: Floats
    done_s: Floats
    """End of each step's synchronization: [iterations] float64. `started_s` is the start of its sampling."""
    stage_s: Mapping[str, Floats]
    """Working time in seconds by stage, each [iterations] float64. `transfer` and `propagate` are those of
    the slowest trainer, without synchronization."""
    trainer_transfer_s: Floats
    trainer_propagate_s: Floats
    """Propagation time of each trainer: [iterations, trainers] float64, as is `trainer_transfer_s`."""
    assignments: tuple[Assignment, ...]
    decisions: tuple[tuple[int, Decision], ...]
    """Pairs (step after which the policy decided, decision), which applies `depth` steps later."""

    @property
    def iteration_s(self) -> Floats:
        """Time between the ends of consecutive steps: [iterations] float64. The first fills the pipeline."""
        return np.diff(self.done_s, prepend=0.0)

    def settled_iteration_s(self, first: int | None = None, last: int | None = None) -> float:
        """Return the mean iteration time of steps `first` to `last` - 1, by default of the second half.

        Raises ValueError if there is no such step.
        """
        count = len(self.done_s)
        first = count // 2 if first is None else first
        last = count if last is None else last
        if not 0 <= first < last <= count:
            raise ValueError(f"a run of {count} steps does not include steps {first} to {last - 1}")
        start_s = self.done_s[first - 1] if first else 0.0
        return float(self.done_s[last - 1] - start_s) / (last - first)


def collect_simulation(
    steps: Sequence[SimulatedStep], decisions: Sequence[tuple[int, Decision]]
) -> Simulation:
    """Return the result of a run from all its steps, in order."""
    transfer_s = np.array([step.transfer_s for step in steps])
    propagate_s = np.array([step.propagate_s for step in steps])
    return Simulation(
        started_s=np.array([step.started_s for step in steps]),
        done_s=np.array([step.done_s for step in steps]),
        stage_s={
            "sample": np.array([sum(step.sample_s) for step in steps]),
            "load": np.array([sum(step.load_s) for step in steps]),
            "transfer": transfer_s.max(axis=1),
            "propagate": propagate_s.max(axis=1),
            "synchronize": np.array([step.synchronize_s for step in steps]),
        },
        trainer_transfer_s=transfer_s,
        trainer_propagate_s=propagate_s,
        assignments=tuple(step.assignment for step in steps),
        decisions=tuple(decisions),
    )


_HISTORY = 64


class PolicyLoop:
    """Loop that queries a policy after each of `num_steps` steps and schedules its decisions.

    If `policy` is None, the assignment `start` never changes. A decision must satisfy `limits` and takes
    effect `limits.delay` steps later. The policy is not queried about steps after the end of the run.
    """

    def __init__(
        self, policy: Policy | None, start: Assignment, limits: AssignmentLimits, num_steps: int
    ) -> None:
        self._policy, self._limits, self._num_steps = policy, limits, num_steps
        self._current = self._latest = start
        self._scheduled: deque[tuple[int, Assignment]] = deque()
        self._history: deque[Observation] = deque(maxlen=_HISTORY)
        self._previous_done_s = 0.0
        self.decisions: list[tuple[int, Decision]] = []

    def assignment(self, step: int) -> Assignment:
        """Return the assignment of a step. Steps must ascend from call to call."""
        while self._scheduled and self._scheduled[0][0] <= step:
            self._current = self._scheduled.popleft()[1]
        return self._current

    def synchronized(self, step: SimulatedStep) -> None:
        """Add a finished step to the history and query the policy.

        Raises ValueError if the decision violates the limits.
        """
        first_step = step.step + self._limits.delay
        if self._policy is None or first_step >= self._num_steps:
            return
        self._history.append(_observation(step, step.done_s - self._previous_done_s))
        self._previous_done_s = step.done_s
        decision = self._policy.decide(tuple(self._history), self._latest, self._limits)
        if decision.assignment != self._latest:
            self._check(step.step, decision.assignment)
            self._scheduled.append((first_step, decision.assignment))
            self.decisions.append((step.step, decision))
            self._latest = decision.assignment

    def _check(self, step: int, decided: Assignment) -> None:
        """Check the sum of a decision and, unless the latest assignment violates these, the limits."""
        assert self._policy is not None
        latest = self._latest
        if len(decided.split) != len(latest.split) or sum(decided.split) != sum(latest.split):
            reason = f"a step has {sum(latest.split)} units for {len(latest.split)} trainers"
        elif self._limits.allows(latest) and not self._limits.allows(decided):
            reason = f"the limits are {self._limits}"
        else:
            return
        raise ValueError(f"policy {self._policy.name} chose {decided} at step {step}, but {reason}")


def _observation(step: SimulatedStep, iteration_s: float) -> Observation:
    return Observation(
        step=step.step,
        assignment=step.assignment,
        iteration_s=iteration_s,
        sample_s=tuple(step.sample_s),
        load_s=tuple(step.load_s),
        sample_on_device_s=(0.0,) * len(step.sample_s),
        transfer_s=tuple(step.transfer_s),
        propagate_s=tuple(step.propagate_s),
        synchronize_s=step.synchronize_s,
    )


__all__ = ["Perturbation", "Simulation", "simulate"]


def simulate(
    platform: Platform,
    training: TrainingWorkload,
    *,
    start: Assignment,
    policy: Policy | None = None,
    iterations: int,
    depth: int = 4,
    noise: float = 0.0,
    seed: int = 0,
    limits: AssignmentLimits | None = None,
    changes: Sequence[Perturbation] = (),
    terms: ExtraTerms | None = None,
) -> Simulation:
    """Simulate the pipeline of `hyrt.pipeline.pipeline` on a described machine.

    The host samples and loads the trainers' shares one after the other; each trainer transfers and propagates
    its share, and propagates a step with the weights of the previous step. At most `depth` steps are in
    flight. Overlapping stages slow each other down if they need more cores than the host has, more memory
    bandwidth than `Host.shared_memory_gb_s`, or more bandwidth of a switch than `Accelerator.switch_gb_s`.

    Parameters
    ----------
    platform, training
        Machine and work. Durations are those of `stage_times`.
    start
        Assignment of the first steps.
    policy
        Policy that is queried after each step with the observations of the last 64 steps. Its decision after
        step i applies from step i + depth, the first step that cannot have been sampled yet. None means that
        the assignment never changes.
    iterations
        Number of steps.
    depth
        Maximum number of steps in flight.
    noise
        Standard deviation of the logarithm of the noise factors, whose mean is 1. Each step has one factor
        for sample, for load, for synchronize, and for each trainer's transfer and propagation.
    seed
        Seed of the noise, which does not depend on the policy's decisions.
    limits
        Limits of the policy, which are enforced, with `depth` as their delay. By default, trainers have
        unlimited memory, and stages share cores if `start` has more threads than there are cores.
    changes
        Speed changes of the machine.
    terms
        Terms that extend the paper's model, by default all of these.

    Raises
    ------
    ValueError
        If a number is out of range, a change names an unknown trainer, the start does not match the platform,
        or a decision violates the limits.
    """
    check_kind("platform", platform, Platform, "pass a platform from load_platform")
    check_kind("training", training, TrainingWorkload, "pass a TrainingWorkload")
    check_kind("start", start, Assignment, "pass the assignment of a prediction")
    check_size("simulation: noise", noise)
    for name, value, minimum in (("iterations", iterations, 1), ("depth", depth, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ValueError(
                f"simulation: {name} must be an integer of at least {minimum}, got {value!r:.60}"
            )
    terms = ExtraTerms() if terms is None else terms
    num_trainers = len(platform.trainers(training.model))
    check_perturbations(changes, num_trainers)
    factors = noise_factors(noise, 2 * num_trainers + 3, seed)
    cached_training = training.with_cached_sizes()
    profile_of = cache(partial(step_profile, platform, cached_training, terms))
    delayed_limits = replace(_limits(platform, training, start) if limits is None else limits, delay=depth)
    loop = PolicyLoop(policy, start, delayed_limits, iterations)
    steps: list[SimulatedStep] = []

    def begin(number: int) -> SimulatedStep:
        assignment = loop.assignment(number)
        profile = profile_of(assignment, speeds_at(changes, number))
        return with_noise(number, assignment, profile, next(factors))

    def end(step: SimulatedStep) -> None:
        steps.append(step)
        loop.synchronized(step)

    has_contention = has_shared_resources(platform, terms)
    if has_contention and policy is None:
        first_steps = sorted({0, *(change.step for change in changes)})
        has_contention = can_slow([profile_of(start, speeds_at(changes, step)) for step in first_steps])
    # Without shared resources, the recurrence is exact and faster.
    run = run_events if has_contention else run_recurrence
    run(iterations, num_trainers, depth, begin, end)
    return collect_simulation(steps, loop.decisions)


def _limits(platform: Platform, training: TrainingWorkload, start: Assignment) -> AssignmentLimits:
    trainers = platform.trainers(training.model)
    is_host = tuple(trainer.is_host for trainer in trainers)
    threads = start.threads.sample + start.threads.load + (start.threads.train if any(is_host) else 0)
    cores = platform.host.cores or threads
    return AssignmentLimits(
        trainers=tuple(trainer.name for trainer in trainers),
        is_host=is_host,
        max_units=(sum(start.split),) * len(trainers),
        cores=cores,
        delay=0,
        threads_are_shared=threads > cores,
    )
