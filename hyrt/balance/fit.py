"""Performance model of a training step, fitted to the latest steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Threads

from hyrt.balance.stage_times import (
    FIRST_TRAINER,
    ITERATION,
    LOAD,
    PROPORTIONAL,
    SAMPLE,
    SYNCHRONIZE,
    Floats,
    HostStage,
    ObservationHistory,
    Period,
    ShareGrowth,
    ThreadScaling,
    fit_host_stage,
    possible_curves,
)

# Prior mean and standard deviation of a launch fraction, until two share sizes are observed.
_LAUNCH_FRACTION = 0.05
_LAUNCH_DEVIATION = 0.25
_MAX_LAUNCH_FRACTION = 0.97
OTHER_SIZE = 1.2
"""Minimum ratio of two target counts that are considered different."""

# Typical relative difference of speed between trainers of one kind.
_PEER_ERROR = 0.06
# A trainer that deviates by more than this many standard errors is an outlier, which says nothing about other
# trainers.
_MAX_PEER_ERRORS = 3.0
_MAX_ERRORS = 5.0
# The cores are the bottleneck of an iteration that uses this fraction of them and takes `_MIN_SLOWDOWN` times
# as long as its slowest stage.
_SATURATED_FRACTION = 0.75
_MIN_SLOWDOWN = 1.06
# Relative error because the form of the model is only approximate.
_FORM_ERROR = 0.03


@dataclass(frozen=True, slots=True)
class StageLine:
    """Linear model of one stage of one trainer: seconds = launch_s + unit_s · growth(units)."""

    launch_s: float
    unit_s: float
    growth: ShareGrowth = PROPORTIONAL

    def seconds(self, units: float, relative: float = 1.0) -> float:
        """Return the time for a number of units, with `unit_s` multiplied by `relative`."""
        return self.launch_s + self.unit_s * relative * self.growth.work(units)

    def max_units(self, within_s: float, relative: float = 1.0) -> float:
        """Return the number of units that the stage can process within `within_s` seconds."""
        if within_s < self.launch_s:
            return 0.0
        unit_s = self.unit_s * relative
        return self.growth.units((within_s - self.launch_s) / unit_s) if unit_s > 0 else math.inf


@dataclass(frozen=True, slots=True)
class FittedStepModel:
    """Performance model of a training step, fitted to observations."""

    sample: HostStage
    load: HostStage
    propagate: tuple[StageLine | None, ...]
    transfer: tuple[StageLine | None, ...]
    sample_on_device: tuple[StageLine | None, ...]
    """Lines of the three device stages, or None for a trainer without observations. `train_curve` scales
    `unit_s` of the host trainer."""
    is_host: tuple[bool, ...]
    train_curve: ThreadScaling
    """Dependence of the host trainer's time on the number of threads."""
    synchronize_s: float
    """Time between the end of the slowest propagation and the end of the step."""
    core_part: float
    """Iteration time divided by core time if the cores are the bottleneck; at least 1 / cores."""

    def capacity(self, trainer: int, within_s: float, train_threads: int) -> float:
        """Return the number of units that a trainer can process within `within_s`, or 0 if it is unknown."""
        propagate = self.propagate[trainer]
        if propagate is None:
            return 0.0
        speed = self.train_curve.relative_time(train_threads) if self.is_host[trainer] else 1.0
        units = propagate.max_units(within_s - self.synchronize_s, speed)
        for line in (self.transfer[trainer], self.sample_on_device[trainer]):
            if line is not None:
                units = min(units, line.max_units(within_s))
        return units

    def trainer_s(self, trainer: int, units: float, train_threads: int) -> float:
        """Return the time of a trainer's slowest stage, including synchronization after propagation."""
        if not units:
            return 0.0
        speed = self.train_curve.relative_time(train_threads) if self.is_host[trainer] else 1.0
        seconds = 0.0
        propagate = self.propagate[trainer]
        if propagate is not None:
            seconds = propagate.seconds(units, speed) + self.synchronize_s
        for line in (self.transfer[trainer], self.sample_on_device[trainer]):
            if line is not None:
                seconds = max(seconds, line.seconds(units))
        return seconds

    def core_s(self, split: Sequence[float], threads: Threads) -> float:
        """Return the core time that a step needs for the host's stages and its trainer."""
        sample_s = self.sample.seconds(split, threads.sample)
        return self._core_s(split, threads, sample_s, self.load.seconds(split, threads.load))

    def _core_s(self, split: Sequence[float], threads: Threads, sample_s: float, load_s: float) -> float:
        seconds = self.synchronize_s + sample_s * threads.sample + load_s * threads.load
        if self.host is not None and split[self.host]:
            line = self.propagate[self.host]
            if line is not None:
                seconds += line.seconds(split[self.host])
        return seconds

    def host_s(self, split: Sequence[float], threads: Threads) -> float:
        """Return the largest of the sampling time, the loading time and the time that the cores need."""
        sample_s = self.sample.seconds(split, threads.sample)
        load_s = self.load.seconds(split, threads.load)
        return max(sample_s, load_s, self.core_part * self._core_s(split, threads, sample_s, load_s))

    @property
    def host(self) -> int | None:
        """Index of the trainer that computes with the assignment's threads, or None."""
        return self.is_host.index(True) if True in self.is_host else None

    def stages_s(self, assignment: Assignment) -> dict[str, float]:
        """Return the times of the host's stages: `sample`, `load`, and `train` if the host trains."""
        threads = assignment.threads
        times = {
            "sample": self.sample.seconds(assignment.split, threads.sample),
            "load": self.load.seconds(assignment.split, threads.load),
        }
        for index, (host, units) in enumerate(zip(self.is_host, assignment.split, strict=True)):
            if host:
                times["train"] = self.trainer_s(index, units, threads.train)
        return times

    def unit_costs(self, split: Sequence[float]) -> list[float]:
        """Return each trainer's single-thread seconds of sampling and loading per unit of its share."""
        return [
            (self.sample.share_s(index, units) + self.load.share_s(index, units)) / units
            if units
            else math.inf
            for index, units in enumerate(split)
        ]

    def iteration_s(self, assignment: Assignment) -> float:
        """Return the time of the slowest stage."""
        threads = assignment.threads
        seconds = self.host_s(assignment.split, threads)
        for trainer, units in enumerate(assignment.split):
            seconds = max(seconds, self.trainer_s(trainer, units, threads.train))
        return seconds


def trainer_kinds(limits: AssignmentLimits) -> tuple[str, ...]:
    """Return the kind of each trainer, which is its name without the number."""
    return tuple(name.rpartition(":")[0] or name for name in limits.trainers)


def fit_step_model(
    evidence: ObservationHistory, limits: AssignmentLimits, *, uses_peers: bool = True
) -> FittedStepModel:
    """Fit the model to the observations so that it reproduces the newest period exactly.

    With `uses_peers`, a trainer without observations is modeled like others of its kind.
    """
    periods = evidence.periods
    trainers = len(limits.trainers)
    errors = [_errors(evidence, index) for index in range(len(periods))]
    newest = periods[0]

    kinds = trainer_kinds(limits)
    members = {kind: [index for index in range(trainers) if kinds[index] == kind] for kind in set(kinds)}
    samples_on_device = limits.samples_on_device or (False,) * trainers
    splits = np.array([period.assignment.split for period in periods], dtype=np.float64)

    def host_stage(column: int, stage: str, shares_s: Sequence[Floats], usual: Sequence[float]) -> HostStage:
        threads = [getattr(period.assignment.threads, stage) for period in periods]
        return fit_host_stage(
            np.array(shares_s), splits, threads, [error[column] for error in errors], usual, kinds
        )

    sample = host_stage(
        SAMPLE,
        "sample",
        [period.sample_s for period in periods],
        [float(not on_device) for on_device in samples_on_device],
    )
    load = host_stage(LOAD, "load", [period.load_s for period in periods], (1.0,) * trainers)
    # Propagation time grows with the sampled edges, and transfer time with the loaded rows.
    growths = (sample.growth, load.growth, sample.growth)
    train_curve = ThreadScaling()
    stages: list[tuple[StageLine | None, ...]] = []
    for growth, first in zip(
        growths, range(FIRST_TRAINER, FIRST_TRAINER + 3 * trainers, trainers), strict=True
    ):
        observed = np.array([period.seconds[first : first + trainers] for period in periods])
        if first != FIRST_TRAINER and not observed.any():
            stages.append((None,) * trainers)
            continue
        points = [_points(periods, errors, trainer, first + trainer) for trainer in range(trainers)]
        # Use only the newest points of the other trainers of a kind.
        peer_points = [
            [] if limits.is_host[trainer] else [point.as_peer() for point in trainer_points[:2]]
            for trainer, trainer_points in enumerate(points)
        ]
        lines: list[StageLine | None] = []
        for trainer, trainer_points in enumerate(points):
            if limits.is_host[trainer] and first == FIRST_TRAINER:
                train_curve, line = _host_line(trainer_points, growth)
                lines.append(line)
                continue
            other_members = [
                other for other in members[kinds[trainer]] if other != trainer and peer_points[other]
            ]
            peers = [peer_points[other] for other in other_members]
            if not trainer_points and uses_peers:
                # Undo the speed changes of peers, which this trainer need not share.
                peers = [
                    [point.scaled(1 / evidence.change[first + other]) for point in peer_points[other]]
                    for other in other_members
                ]
                trainer_points = list(chain.from_iterable(peers))
            sizes = [point.units for point in trainer_points]
            # If the trainer was observed with several sizes, peers add little information.
            has_sizes = bool(sizes) and max(sizes) > OTHER_SIZE * min(sizes)
            growth_choices = _distinct_growths(growth)
            # A transfer moves the loaded rows. If loading was shown to grow in an unusual way, prefer its
            # growth for transfers too.
            is_shown = first == FIRST_TRAINER + trainers and growth.prior_penalty > 0
            forms = growth_choices[::-1] if is_shown else growth_choices
            lines.append(_likeliest_line(trainer_points, () if has_sizes else peers, forms))
        stages.append(tuple(lines))
    fitted = FittedStepModel(
        sample=sample,
        load=load,
        propagate=stages[0],
        transfer=stages[1],
        sample_on_device=stages[2],
        is_host=limits.is_host,
        train_curve=train_curve,
        synchronize_s=float(newest.seconds[SYNCHRONIZE]),
        core_part=1 / limits.cores,
    )
    # If the cores are busy for most of the iteration, they are the bottleneck.
    iteration_s = float(newest.seconds[ITERATION])
    core_s = fitted.core_s(newest.assignment.split, newest.assignment.threads)
    if core_s > _SATURATED_FRACTION * limits.cores * iteration_s and (
        core_s > limits.cores * iteration_s
        or iteration_s > _MIN_SLOWDOWN * fitted.iteration_s(newest.assignment)
    ):
        return replace(fitted, core_part=iteration_s / core_s)
    return fitted


def _errors(evidence: ObservationHistory, index: int) -> list[float]:
    """Return the relative standard error of each time in a period."""
    result: list[float] = (evidence.noise / np.sqrt(evidence.periods[index].steps)).tolist()
    return result


class Point(NamedTuple):
    """Observed time of a trainer's stage in a period. It is a tuple because a decision creates hundreds."""

    units: float
    seconds: float
    error: float
    """Relative standard error of the observed time."""
    age: int
    """Age of the observation in periods."""
    threads: int
    """Number of threads of the host trainer."""

    def as_peer(self) -> Point:
        """Return the point for use by another trainer of the kind: with a larger error and age."""
        return Point(self.units, self.seconds, self.error + _PEER_ERROR, self.age + 1, self.threads)

    def scaled(self, factor: float) -> Point:
        """Return the point with `seconds` multiplied by `factor`."""
        return self._replace(seconds=self.seconds * factor) if factor != 1.0 else self


def _points(
    periods: Sequence[Period], errors: Sequence[Sequence[float]], trainer: int, column: int
) -> list[Point]:
    """Return one point for each period in which the trainer had units."""
    return [
        Point(
            float(period.assignment.split[trainer]),
            float(period.seconds[column]),
            error[column],
            age,
            period.assignment.threads.train,
        )
        for age, (period, error) in enumerate(zip(periods, errors, strict=True))
        if period.assignment.split[trainer]
    ]


def _line(
    observed: Sequence[Point],
    peers: Sequence[Sequence[Point]] = (),
    growth: ShareGrowth = PROPORTIONAL,
    curve: ThreadScaling | None = None,
) -> tuple[StageLine | None, float]:
    """Return the line through the newest point that fits the other points best, and its cost.

    If trainers of the same kind contradict this trainer or each other, one may be excluded as an outlier.
    """
    if not observed:
        return None, 0.0
    newest = observed[0]
    if newest.seconds <= 0:
        return StageLine(0.0, 0.0), 0.0
    speed = curve.relative_time(newest.threads) if curve else 1.0
    work = growth.work(newest.units) * speed

    def ratios(points: Sequence[Point], errors: float) -> list[_Ratio]:
        constraints = []
        for point in points:
            work_ratio = (
                growth.work(point.units) * (curve.relative_time(point.threads) if curve else 1.0) / work
            )
            ratio = point.seconds / newest.seconds
            spread = max(
                (
                    newest.error**2
                    + (point.error * max(ratio, 0.1)) ** 2
                    # Only the growing part of a time, which is small if launches dominate, has a model error.
                    + (_FORM_ERROR * (1 + point.age / 4) * min(abs(1 - work_ratio), abs(1 - ratio))) ** 2
                )
                ** 0.5,
                1e-6,
            )
            constraints.append((work_ratio, ratio, spread, errors))
        return constraints

    trainer_ratios = ratios(observed[1:], _MAX_ERRORS)
    peer_ratios = [ratios(points, _MAX_PEER_ERRORS) for points in peers]
    all_ratios = [*trainer_ratios, *chain.from_iterable(peer_ratios)]
    launch = _launch(all_ratios)
    cost = _squared_error(all_ratios, launch) + _prior_penalty(launch)
    if len(peer_ratios) > 1 and _squared_error(all_ratios, launch) > _MAX_PEER_ERRORS**2:
        for excluded in range(len(peer_ratios)):
            rest = [
                *trainer_ratios,
                *chain.from_iterable(peer_ratios[:excluded] + peer_ratios[excluded + 1 :]),
            ]
            other = _launch(rest)
            other_cost = _squared_error(all_ratios, other) + _prior_penalty(other)
            if other_cost < cost:
                launch, cost = other, other_cost
    return StageLine(launch * newest.seconds, (1 - launch) * newest.seconds / work, growth), cost / 2


_Ratio = tuple[float, float, float, float]
"""Constraint on a line through the newest point: work and time relative to that point, error of the time
ratio, and number of errors beyond which it is an outlier."""


def _launch(known: Sequence[_Ratio]) -> float:
    """Return the newest point's launch fraction, estimated by least squares with a prior."""
    weight = 1 / _LAUNCH_DEVIATION**2
    total = _LAUNCH_FRACTION * weight
    largest = 1.0
    for work_ratio, ratio, spread, _ in known:
        # Skip times that no line through the newest point can reach: they precede a speed change.
        if min(work_ratio, 1.0) * 0.7 < ratio < max(work_ratio, 1.0) * 1.4:
            lever = (1 - work_ratio) / spread
            weight += lever**2
            total += lever * (ratio - work_ratio) / spread
            largest = max(largest, work_ratio)
    # At the largest observed share, part of the time must grow; at a small share, this part may be tiny.
    max_launch = _MAX_LAUNCH_FRACTION * largest / (_MAX_LAUNCH_FRACTION * largest + 1 - _MAX_LAUNCH_FRACTION)
    return min(max(total / weight, 0.0), max_launch)


def _squared_error(known: Sequence[_Ratio], launch: float) -> float:
    """Return the sum of squared errors of a line with this launch fraction, with bounded outliers."""
    total = 0.0
    for work_ratio, ratio, spread, errors in known:
        total += min(((launch + (1 - launch) * work_ratio - ratio) / spread) ** 2, errors**2)
    return total


def _prior_penalty(launch: float) -> float:
    return (launch - _LAUNCH_FRACTION) ** 2 / _LAUNCH_DEVIATION**2


def _likeliest_line(
    observed: Sequence[Point], peers: Sequence[Sequence[Point]], growths: Sequence[ShareGrowth]
) -> StageLine | None:
    """Return the line with the most likely growth, or the first such line."""
    return min(
        (_line(observed, peers, growth) for growth in growths), key=lambda line_and_cost: line_and_cost[1]
    )[0]


def _distinct_growths(growth: ShareGrowth) -> tuple[ShareGrowth, ...]:
    return (PROPORTIONAL,) if growth.is_proportional else (PROPORTIONAL, growth)


def _host_line(observed: Sequence[Point], growth: ShareGrowth) -> tuple[ThreadScaling, StageLine | None]:
    """Fit the host trainer's line and its dependence on threads, and return the most likely pair."""
    fits = [
        (curve, *_line(observed, (), choice, curve))
        for curve in possible_curves([point.threads for point in observed] or [1])
        for choice in _distinct_growths(growth)
    ]
    curve, line, _ = min(fits, key=lambda candidate: candidate[2] + candidate[0].prior_penalty)
    return curve, line
