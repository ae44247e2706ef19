"""The performance model of a step, fitted to what the latest steps took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from hyrt_perfmodel.assignment import Assignment, Threads
from hyrt_perfmodel.policy import AssignmentLimits

from hyrt.balance.fitted.evidence import (
    FIRST_TRAINER,
    ITERATION,
    LOAD,
    SAMPLE,
    SYNCHRONIZE,
    Evidence,
    Floats,
    Period,
)
from hyrt.balance.fitted.growth import PROPORTIONAL, ShareGrowth
from hyrt.balance.fitted.host_stage import HostStage, fit_host_stage
from hyrt.balance.fitted.thread_curve import ThreadCurve, possible_curves

# What is known of a trainer's time before it is seen at two sizes: this part of it does not grow with the
# targets, give or take that much.
_LAUNCH_PART = 0.05
_LAUNCH_SPREAD = 0.25
_MOST_LAUNCH = 0.97
OTHER_SIZE = 1.2
"""A number of targets is another one from this ratio on."""

# Trainers of one kind differ by about this much.
_MATE_ERROR = 0.06
# One that is off by more of its errors than this is a faster or slower one, which says nothing of the others.
_ODD_MATE_ERRORS = 3.0
_ODD_ERRORS = 5.0
# The cores bound an iteration that uses this part of them and is so much longer than its slowest stage.
_BUSY_PART = 0.75
_SLOWER = 1.06
# How far the form of the model itself is off.
_FORM_ERROR = 0.03


@dataclass(frozen=True, slots=True)
class Line:
    """One stage of one trainer: launch_s + unit_s · growth of its units."""

    launch_s: float
    unit_s: float
    growth: ShareGrowth = PROPORTIONAL

    def seconds(self, units: float, relative: float = 1.0) -> float:
        """The time of so many units, where one takes `relative` of what it usually does."""
        return self.launch_s + self.unit_s * relative * self.growth.of(units)

    def most(self, within_s: float, relative: float = 1.0) -> float:
        """How many units it does in that time."""
        if within_s < self.launch_s:
            return 0.0
        unit_s = self.unit_s * relative
        return self.growth.units((within_s - self.launch_s) / unit_s) if unit_s > 0 else math.inf


@dataclass(frozen=True, slots=True)
class Fit:
    """The fitted model."""

    sample: HostStage
    load: HostStage
    """`sample` and `load`: the stages that run on the host."""
    propagate: tuple[Line | None, ...]
    transfer: tuple[Line | None, ...]
    sample_on_device: tuple[Line | None, ...]
    """`propagate`, `transfer` and `sample_on_device`: one a trainer; the host's takes launch_s + unit_s ·
    units · train_curve. None where nothing is known of the trainer."""
    is_host: tuple[bool, ...]
    train_curve: ThreadCurve
    """`is_host` and `train_curve`: which trainer computes with the assignment's threads, and how its time
    depends on them."""
    synchronize_s: float
    """The time that follows the slowest propagation."""
    core_part: float
    """Iteration over the seconds of work on the host's cores, where these bound it: one over the cores, or
    more."""

    def capacity(self, trainer: int, within_s: float, train_threads: int) -> float:
        """Units that a trainer does in that time; 0 for one of which nothing is known."""
        propagate = self.propagate[trainer]
        if propagate is None:
            return 0.0
        speed = self.train_curve.at(train_threads) if self.is_host[trainer] else 1.0
        units = propagate.most(within_s - self.synchronize_s, speed)
        for line in (self.transfer[trainer], self.sample_on_device[trainer]):
            if line is not None:
                units = min(units, line.most(within_s))
        return units

    def trainer_s(self, trainer: int, units: float, train_threads: int) -> float:
        """The slowest of a trainer's own stages, synchronization with its propagation."""
        if not units:
            return 0.0
        speed = self.train_curve.at(train_threads) if self.is_host[trainer] else 1.0
        seconds = 0.0
        propagate = self.propagate[trainer]
        if propagate is not None:
            seconds = propagate.seconds(units, speed) + self.synchronize_s
        for line in (self.transfer[trainer], self.sample_on_device[trainer]):
            if line is not None:
                seconds = max(seconds, line.seconds(units))
        return seconds

    def core_s(self, split: Sequence[float], threads: Threads) -> float:
        """Seconds of the host's cores that a step uses: those of its stages and of its own trainer."""
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
        """The slowest of sampling, loading and the cores' work."""
        sample_s = self.sample.seconds(split, threads.sample)
        load_s = self.load.seconds(split, threads.load)
        return max(sample_s, load_s, self.core_part * self._core_s(split, threads, sample_s, load_s))

    @property
    def host(self) -> int | None:
        """The trainer that computes with the assignment's threads."""
        return self.is_host.index(True) if True in self.is_host else None

    def stages_s(self, assignment: Assignment) -> dict[str, float]:
        """Of the stages that have threads: sample, load, and train where the host trains."""
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
        """Seconds of sampling and loading, on one thread, that a unit costs each trainer that has so many."""
        return [
            (self.sample.share_s(index, units) + self.load.share_s(index, units)) / units
            if units
            else math.inf
            for index, units in enumerate(split)
        ]

    def iteration_s(self, assignment: Assignment) -> float:
        """The slowest stage."""
        threads = assignment.threads
        seconds = self.host_s(assignment.split, threads)
        for trainer, units in enumerate(assignment.split):
            seconds = max(seconds, self.trainer_s(trainer, units, threads.train))
        return seconds


def kinds_of(limits: AssignmentLimits) -> tuple[str, ...]:
    """The trainers' names without their numbers: those of one kind are much alike."""
    return tuple(name.rpartition(":")[0] or name for name in limits.trainers)


def fit(evidence: Evidence, limits: AssignmentLimits, *, knows_mates: bool = True) -> Fit:
    """The model that explains the evidence, exactly where the newest period is.

    Parameters
    ----------
    evidence, limits
        What was seen, and who the trainers are.
    knows_mates
        Whether a trainer that was not seen is taken to be like others of its kind.
    """
    periods = evidence.periods
    trainers = len(limits.trainers)
    errors = [_errors(evidence, index) for index in range(len(periods))]
    newest = periods[0]

    kinds = kinds_of(limits)
    of_kind = {kind: [index for index in range(trainers) if kinds[index] == kind] for kind in set(kinds)}
    samples_itself = limits.samples_on_device or (False,) * trainers
    splits = np.array([period.assignment.split for period in periods], dtype=np.float64)

    def host_stage(column: int, stage: str, shares_s: Sequence[Floats], usual: Sequence[float]) -> HostStage:
        threads = [getattr(period.assignment.threads, stage) for period in periods]
        return fit_host_stage(
            np.array(shares_s), splits, threads, [error[column] for error in errors], usual, kinds
        )

    sample = host_stage(
        SAMPLE, "sample", [period.sample_s for period in periods], [float(not own) for own in samples_itself]
    )
    load = host_stage(LOAD, "load", [period.load_s for period in periods], (1.0,) * trainers)
    # A trainer computes over the edges that sampling draws, and gets the rows that loading reads.
    growths = (sample.growth, load.growth, sample.growth)
    train_curve = ThreadCurve()
    stages: list[tuple[Line | None, ...]] = []
    for growth, first in zip(
        growths, range(FIRST_TRAINER, FIRST_TRAINER + 3 * trainers, trainers), strict=True
    ):
        took = np.array([period.seconds[first : first + trainers] for period in periods])
        if first != FIRST_TRAINER and not took.any():
            stages.append((None,) * trainers)
            continue
        points = [_points(periods, errors, trainer, first + trainer) for trainer in range(trainers)]
        # What others of its kind may know a trainer by: what it took last.
        as_mates = [
            [] if limits.is_host[trainer] else [point.of_a_mate() for point in seen[:2]]
            for trainer, seen in enumerate(points)
        ]
        lines: list[Line | None] = []
        for trainer, seen in enumerate(points):
            if limits.is_host[trainer] and first == FIRST_TRAINER:
                train_curve, line = _host_line(seen, growth)
                lines.append(line)
                continue
            others = [other for other in of_kind[kinds[trainer]] if other != trainer and as_mates[other]]
            mates = [as_mates[other] for other in others]
            if not seen and knows_mates:
                # What happened to them need not have happened to it.
                mates = [
                    [point.times(1 / evidence.change[first + other]) for point in as_mates[other]]
                    for other in others
                ]
                seen = list(chain.from_iterable(mates))
            sizes = [point.units for point in seen]
            # What a trainer itself took with other sizes says more than others of its kind.
            knows_itself = bool(sizes) and max(sizes) > OTHER_SIZE * min(sizes)
            grows = _told_apart(growth)
            # What is transferred is what was loaded, and grows so where shares have shown that it is unusual.
            is_shown = first == FIRST_TRAINER + trainers and growth.surprise > 0
            forms = grows[::-1] if is_shown else grows
            lines.append(_likeliest(seen, () if knows_itself else mates, forms))
        stages.append(tuple(lines))
    fitted = Fit(
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
    # Cores that are in use most of the time are what the iteration waits for, and no work is more than they
    # can do.
    iteration_s = float(newest.seconds[ITERATION])
    core_s = fitted.core_s(newest.assignment.split, newest.assignment.threads)
    if core_s > _BUSY_PART * limits.cores * iteration_s and (
        core_s > limits.cores * iteration_s or iteration_s > _SLOWER * fitted.iteration_s(newest.assignment)
    ):
        return replace(fitted, core_part=iteration_s / core_s)
    return fitted


def _errors(evidence: Evidence, index: int) -> list[float]:
    """Relative standard error of each time of a period."""
    result: list[float] = (evidence.noise / np.sqrt(evidence.periods[index].steps)).tolist()
    return result


class Point(NamedTuple):
    """What a stage of a trainer took in a period: a tuple, of which a decision makes hundreds."""

    units: float
    """The units that it had."""
    seconds: float
    """The time that it took."""
    error: float
    """The relative error of that time."""
    age: int
    """How many periods ago that was."""
    threads: int
    """The threads of the host's trainer."""

    def of_a_mate(self) -> Point:
        """The same, of another trainer of the kind: it is not quite as fast."""
        return Point(self.units, self.seconds, self.error + _MATE_ERROR, self.age + 1, self.threads)

    def times(self, factor: float) -> Point:
        """The same at another speed."""
        return self._replace(seconds=self.seconds * factor) if factor != 1.0 else self


def _points(
    periods: Sequence[Period], errors: Sequence[Sequence[float]], trainer: int, column: int
) -> list[Point]:
    """Of the periods in which the trainer had units."""
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
    seen: Sequence[Point],
    mates: Sequence[Sequence[Point]] = (),
    growth: ShareGrowth = PROPORTIONAL,
    curve: ThreadCurve | None = None,
) -> tuple[Line | None, float]:
    """The line through the newest point, whose launch part the others say; and its misfit.

    Where mates contradict it or each other, one of them may be left out: the kind's odd one.
    """
    if not seen:
        return None, 0.0
    newest = seen[0]
    if newest.seconds <= 0:
        return Line(0.0, 0.0), 0.0
    speed = curve.at(newest.threads) if curve else 1.0
    work = growth.of(newest.units) * speed

    def ratios(points: Sequence[Point], errors: float) -> list[_Ratio]:
        found = []
        for point in points:
            part = growth.of(point.units) * (curve.at(point.threads) if curve else 1.0) / work
            ratio = point.seconds / newest.seconds
            spread = max(
                (
                    newest.error**2
                    + (point.error * max(ratio, 0.1)) ** 2
                    # Off by a part of what grows: that is little where most of a time is launch.
                    + (_FORM_ERROR * (1 + point.age / 4) * min(abs(1 - part), abs(1 - ratio))) ** 2
                )
                ** 0.5,
                1e-6,
            )
            found.append((part, ratio, spread, errors))
        return found

    own = ratios(seen[1:], _ODD_ERRORS)
    of_mates = [ratios(points, _ODD_MATE_ERRORS) for points in mates]
    known = [*own, *chain.from_iterable(of_mates)]
    launch = _launch(known)
    misfit = _misfit(known, launch) + _surprise(launch)
    if len(of_mates) > 1 and _misfit(known, launch) > _ODD_MATE_ERRORS**2:
        for left_out in range(len(of_mates)):
            rest = [*own, *chain.from_iterable(of_mates[:left_out] + of_mates[left_out + 1 :])]
            other = _launch(rest)
            off = _misfit(known, other) + _surprise(other)
            if off < misfit:
                launch, misfit = other, off
    return Line(launch * newest.seconds, (1 - launch) * newest.seconds / work, growth), misfit / 2


_Ratio = tuple[float, float, float, float]
"""What a point says of a line through the newest one: its work and its time, over those of the newest one;
the error of the latter; and from how many errors on it says no more than that it is another device."""


def _launch(known: Sequence[_Ratio]) -> float:
    """The part of the newest point's time that does not grow, by least squares and what is usual."""
    weight = 1 / _LAUNCH_SPREAD**2
    total = _LAUNCH_PART * weight
    largest = 1.0
    for part, ratio, spread, _ in known:
        # A time that no line through the newest one reaches is from before a change.
        if min(part, 1.0) * 0.7 < ratio < max(part, 1.0) * 1.4:
            lever = (1 - part) / spread
            weight += lever**2
            total += lever * (ratio - part) / spread
            largest = max(largest, part)
    # Of the time of the largest share that was seen, at least a little grows: of a small one, hardly any may.
    most = _MOST_LAUNCH * largest / (_MOST_LAUNCH * largest + 1 - _MOST_LAUNCH)
    return min(max(total / weight, 0.0), most)


def _misfit(known: Sequence[_Ratio], launch: float) -> float:
    """Squared errors of a line with that launch part."""
    misfit = 0.0
    for part, ratio, spread, errors in known:
        misfit += min(((launch + (1 - launch) * part - ratio) / spread) ** 2, errors**2)
    return misfit


def _surprise(launch: float) -> float:
    """How unusual a launch part is, as a misfit."""
    return (launch - _LAUNCH_PART) ** 2 / _LAUNCH_SPREAD**2


def _likeliest(
    seen: Sequence[Point], mates: Sequence[Sequence[Point]], growths: Sequence[ShareGrowth]
) -> Line | None:
    """In proportion to the units, or to the work of the host's stages; of equally likely ones the first."""
    return min((_line(seen, mates, each) for each in growths), key=lambda found: found[1])[0]


def _told_apart(growth: ShareGrowth) -> tuple[ShareGrowth, ...]:
    return (PROPORTIONAL,) if growth.is_proportional else (PROPORTIONAL, growth)


def _host_line(seen: Sequence[Point], growth: ShareGrowth) -> tuple[ThreadCurve, Line | None]:
    """Of the host's trainer: with the curve over its threads that explains its times best."""
    fits = [
        (curve, *_line(seen, (), each, curve))
        for curve in possible_curves([point.threads for point in seen] or [1])
        for each in _told_apart(growth)
    ]
    curve, line, _ = min(fits, key=lambda found: found[2] + found[0].surprise)
    return curve, line
