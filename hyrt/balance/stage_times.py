"""Stage times of the latest steps, grouped by assignment, and models of these times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
from hyrt_perfmodel.policy import Assignment, Observation
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Columns of the times of a step: these four, then `propagate`, `transfer` and `sample_on_device` per trainer.
SAMPLE, LOAD, SYNCHRONIZE, ITERATION = range(4)
FIRST_TRAINER = 4

USUAL_NOISE = 0.05
"""Relative standard deviation of a time between steps that is assumed if too few steps are available."""

# A device has changed its speed if its times before and after a step differ by this many standard errors and
# by `_MIN_CHANGE`, over at least `_CHANGE_STEPS` steps. Fewer steps may be a transient.
_CHANGE_ERRORS = 5.0
_MIN_CHANGE = 0.14
_CHANGE_STEPS = 3
# A speed has also changed if a time differs by this factor from the time expected for its units, over at
# least `_MIN_STEPS` steps.
_SPEED_RATIO = 1.5
_MIN_STEPS = 2
# Only periods of at least this many steps are tested for drift.
_MIN_DRIFT_STEPS = 10


@dataclass(frozen=True, slots=True)
class Period:
    """Consecutive steps under one assignment."""

    assignment: Assignment
    seconds: Floats
    """Robust mean of each time: float64 [columns]."""
    steps: Floats
    """Number of steps from which each value of `seconds` was computed: float64 [columns]."""
    is_past: bool
    """Whether any speed has changed since this period."""
    sample_s: Floats
    load_s: Floats
    """Sampling (`sample_s`) and loading seconds that each trainer's share took: float64 [trainers]."""


@dataclass(frozen=True, slots=True)
class ObservationHistory:
    """Observations grouped into periods, and the noise of their times."""

    periods: tuple[Period, ...]
    """Periods, newest first. If a device changed its speed, earlier times are scaled to the new speed."""
    noise: Floats
    """Relative standard deviation of each time in the newest period: float64 [columns]."""
    change: Floats
    """Ratio of the times after a speed change in the newest period to those before it; 1 if the speed did not
    change: float64 [columns].
    """

    @property
    def has_changed(self) -> NDArray[np.bool_]:
        """Whether the speed changed within the newest period, for each time: bool [columns]."""
        result: NDArray[np.bool_] = self.change != 1.0
        return result


def group_history(history: Sequence[Observation], delay: int = 0) -> ObservationHistory:
    """Group a nonempty list of observations, oldest step first, into periods.

    The first `delay` iteration times after a change still belong to the previous assignment, whose steps are
    in flight.
    """
    times = chain.from_iterable(
        (
            *step.sample_s,
            *step.load_s,
            0.0,
            0.0,
            step.synchronize_s,
            step.iteration_s,
            *step.propagate_s,
            *step.transfer_s,
            *step.sample_on_device_s,
        )
        for step in history
    )
    table = np.fromiter(times, dtype=np.float64).reshape(len(history), -1)
    trainers = len(history[0].sample_s)
    sampled, loaded, rows = np.split(table, [trainers, 2 * trainers], axis=1)
    rows[:, SAMPLE], rows[:, LOAD] = sampled.sum(axis=1), loaded.sum(axis=1)
    assignments = [step.assignment for step in history]
    starts = [0] + [
        index
        for index, (before, after) in enumerate(pairwise(assignments), start=1)
        if after is not before and after != before
    ]
    sample_parts, load_parts = _time_shares(sampled, starts), _time_shares(loaded, starts)
    periods: list[Period] = []
    unchanged = np.ones(rows.shape[1])
    is_past = False
    factor = noise = newest_change = unchanged
    end = len(history)
    for index, start in reversed(list(enumerate(starts))):
        period_rows = rows[start:end]
        change_starts, change = [0], unchanged
        if not periods or len(period_rows) >= _MIN_DRIFT_STEPS:
            change_starts, change = _speed_change(period_rows, delay)
        if any(change_starts):
            level = np.array(
                [_robust_mean(period_rows[start:, column]) for column, start in enumerate(change_starts)]
            )
            steps = np.array([len(period_rows) - start for start in change_starts], dtype=np.float64)
        else:
            level, steps = _robust_means(period_rows), unchanged * len(period_rows)
        if not periods:
            noise, newest_change = _noise(period_rows, change_starts), change
        settled = period_rows[max(change_starts) + delay :, ITERATION]
        level[ITERATION] = max(_robust_mean(settled) if len(settled) > 1 else 0.0, slowest_stage_s(level))
        seconds = level * factor
        sample_s, load_s = sample_parts[index] * seconds[SAMPLE], load_parts[index] * seconds[LOAD]
        # Test each period separately, because a temporary change may have been reverted.
        has_changed = is_past or (
            bool(periods)
            and _has_other_speed(periods[0], history[start].assignment, seconds, len(period_rows))
        )
        periods.append(Period(history[start].assignment, seconds, steps, has_changed, sample_s, load_s))
        if change is not unchanged:
            factor = factor * change
            is_past = is_past or bool((change != 1.0).any())
        end = start
    return ObservationHistory(tuple(periods), noise, newest_change)


def slowest_stage_s(seconds: Floats) -> float:
    """Return the time of the slowest stage, which is a lower bound on the iteration time."""
    # For a handful of values, Python's max of a list is faster than numpy's.
    times: list[float] = seconds.tolist()
    after_propagate = FIRST_TRAINER + (len(times) - FIRST_TRAINER) // 3
    propagate_s = max(times[FIRST_TRAINER:after_propagate]) + times[SYNCHRONIZE]
    return max(times[SAMPLE], times[LOAD], propagate_s, *times[after_propagate:])


def _has_other_speed(newest: Period, before: Assignment, seconds: Floats, steps: int) -> bool:
    """Return whether a trainer's speed has changed, however its time depends on the number of units."""
    if min(steps, float(newest.steps.min())) < _MIN_STEPS:
        return False
    more_threads = before.threads.train / newest.assignment.threads.train
    present = newest.assignment.split
    propagate_s = slice(FIRST_TRAINER, FIRST_TRAINER + len(present))
    old_s, new_s = seconds[propagate_s].tolist(), newest.seconds[propagate_s].tolist()
    for old_units, new_units, old_time, new_time in zip(before.split, present, old_s, new_s, strict=True):
        if not (old_units and new_units and old_time > 0 and new_time > 0):
            continue
        more_units = new_units / old_units
        parts = (1.0, more_units, more_threads, more_units * more_threads)
        if not min(parts) / _SPEED_RATIO < new_time / old_time < max(parts) * _SPEED_RATIO:
            return True
    return False


def _time_shares(seconds: Floats, starts: Sequence[int]) -> Floats:
    """Return each trainer's fraction of a stage's time [periods, trainers], given times [steps, trainers]."""
    sums = np.add.reduceat(seconds, starts, axis=0)
    parts: Floats = sums / np.maximum(sums.sum(axis=1), 1e-12)[:, None]
    return parts


def _speed_change(rows: Floats, delay: int) -> tuple[list[int], Floats]:
    """Return the first row of each column's current speed, and the factor by which the time changed there."""
    count, columns = rows.shape
    unchanged = [0] * columns, np.ones(columns)
    if count < 2 * _CHANGE_STEPS:
        return unchanged
    logs = np.log(np.maximum(rows, 1e-12))
    before = np.arange(_CHANGE_STEPS, count - _CHANGE_STEPS + 1, dtype=np.float64)[:, None]
    sums = np.cumsum(logs, axis=0)[_CHANGE_STEPS - 1 : count - _CHANGE_STEPS]
    shifts = (logs.sum(axis=0) - sums) / (count - before) - sums / before
    # Differences of adjacent steps contain the noise, but a change of speed appears only once.
    spread = np.maximum(medians(np.abs(logs[1:] - logs[:-1])) / 0.954, USUAL_NOISE)
    errors = np.abs(shifts) * np.sqrt(before * (count - before) / count) / spread
    best = np.argmax(errors, axis=0)
    columns_range = np.arange(columns)
    shift = shifts[best, columns_range]
    is_change = (errors[best, columns_range] > _CHANGE_ERRORS) & (np.abs(shift) > _MIN_CHANGE)
    # The first iteration times of a period still belong to the previous assignment.
    is_change[ITERATION] = False
    starts = np.where(is_change, best + _CHANGE_STEPS, 0)
    for column in np.flatnonzero(is_change):
        # Use medians, because one outlier in three steps shifts a mean.
        start = starts[column]
        shift[column] = medians(logs[start:, column]) - medians(logs[:start, column])
        if abs(shift[column]) <= _MIN_CHANGE:
            is_change[column], starts[column] = False, 0
    if not is_change.any():
        return unchanged
    # Ignore early changes: in the first steps, steps of the previous period are still running.
    lasting = is_change & (starts > delay + _CHANGE_STEPS)
    return [int(start) for start in starts], np.where(lasting, np.exp(shift), 1.0)


def _robust_mean(values: Floats) -> float:
    """Return the interquartile mean, which ignores outliers."""
    return float(_robust_means(values))


def _robust_means(rows: Floats) -> Floats:
    """Return `_robust_mean` of each column."""
    ordered = np.sort(rows, axis=0)
    cut = len(ordered) // 4
    result: Floats = np.add.reduce(ordered[cut : len(ordered) - cut]) / (len(ordered) - 2 * cut)
    return result


def medians(rows: Floats) -> Floats:
    """Return the median of each column. For few rows, this is faster than `np.median`."""
    ordered = np.sort(rows, axis=0)
    count = len(ordered)
    result: Floats = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return result


def _noise(rows: Floats, starts: Sequence[int]) -> Floats:
    """Return each column's relative deviation since its last change, shrunk towards `USUAL_NOISE`."""
    prior_weight = 4.0
    counts = len(rows) - np.array(starts, dtype=np.float64)
    counted = np.arange(len(rows))[:, None] >= np.array(starts)
    mean = (rows * counted).sum(axis=0) / counts
    square = (((rows - mean) * counted) ** 2).sum(axis=0) / np.maximum(mean, 1e-12) ** 2
    result: Floats = np.sqrt((square + prior_weight * USUAL_NOISE**2) / (counts - 1 + prior_weight))
    return result


@dataclass(frozen=True, slots=True)
class ShareGrowth:
    """Work of a share as a function of its units: units ** power, or a bounded number of distinct items.

    A mini-batch of twice the size has less than twice the vertices, because neighbours are shared. With a
    bound, each unit covers random items of a finite set: bound · (1 - exp(-units / bound)).
    """

    power: float = 1.0
    """Exponent of the growth, at most 1."""
    bound: float = math.inf
    """Maximum work of a share, in units."""
    prior_penalty: float = 0.0

    @property
    def is_proportional(self) -> bool:
        """Whether the work is proportional to the units."""
        return self.power == 1 and self.bound == math.inf

    def work(self, units: float) -> float:
        """Return the work of a number of units."""
        if self.bound < math.inf:
            return -self.bound * math.expm1(-units / self.bound)
        return float(units) if self.power == 1 else float(units) ** self.power

    def work_of_all(self, units: Floats) -> Floats:
        """Return the work for each number of units in an array."""
        if self.bound < math.inf:
            return -self.bound * np.expm1(-units / self.bound)
        result: Floats = np.power(units, self.power) * (units > 0)
        return result

    def units(self, work: float) -> float:
        """Return the number of units that amount to `work`; infinite if `work` is not below the bound."""
        if work >= self.bound:
            return math.inf
        return (
            -self.bound * math.log1p(-work / self.bound)
            if self.bound < math.inf
            else work ** (1 / self.power)
        )


PROPORTIONAL = ShareGrowth()

_USUAL_POWER = 0.9
_POWER_DEVIATION = 0.15
_POWERS = (0.9, 1.0, 0.8, 0.65, 0.5, 0.3, 0.15)
_BOUNDS = (2.0, 1.0, 0.5, 0.25, 0.12, 0.06, 0.03)
_BOUND_PENALTY = 2.0


@lru_cache(maxsize=8)
def possible_growths(total: float) -> tuple[ShareGrowth, ...]:
    """Return distinguishable growths for steps of `total` units: powers, likeliest first, then bounds."""
    powers = tuple(
        ShareGrowth(power=power, prior_penalty=(power - _USUAL_POWER) ** 2 / (2 * _POWER_DEVIATION**2))
        for power in _POWERS
    )
    return powers + tuple(
        ShareGrowth(bound=fraction * total, prior_penalty=_BOUND_PENALTY) for fraction in _BOUNDS
    )


def log_work(growths: Sequence[ShareGrowth], units: Floats) -> Floats:
    """Return the logarithm of work, float64 [growths, units]. In `growths`, powers precede bounds."""
    powers = np.array([growth.power for growth in growths if growth.bound == math.inf])[:, None]
    bounds = np.array([growth.bound for growth in growths if growth.bound < math.inf])[:, None]
    return np.concatenate([powers * np.log(units), np.log(-bounds * np.expm1(-units / bounds))])


@dataclass(frozen=True, slots=True)
class ThreadScaling:
    """Time with k threads relative to one thread: serial + (1 - serial) / min(k, max_threads)."""

    serial: float = 0.02
    """Fraction of the work that one thread does (Amdahl's law)."""
    max_threads: float = math.inf
    """Number of threads that saturates the memory bandwidth; additional threads gain nothing."""

    @property
    def prior_penalty(self) -> float:
        """Penalty of unlikely curves: usually, almost all of a stage runs in parallel."""
        return 2 * abs(self.serial - 0.02) + (0.5 if self.max_threads < math.inf else 0.0)

    def relative_time(self, threads: float) -> float:
        """Return the time with `threads` threads, relative to one thread."""
        return self.serial + (1 - self.serial) / min(threads, self.max_threads)

    def min_threads(self, relative: float) -> float:
        """Return the minimum number of threads for a relative time of `relative`, or infinity."""
        if relative <= self.serial:
            return math.inf
        count = (1 - self.serial) / (relative - self.serial)
        return max(1, math.ceil(count - 1e-9)) if count <= self.max_threads + 1e-9 else math.inf


_SERIAL = (0.0, 0.02, 0.06, 0.12, 0.25, 0.5, 1.0)


def possible_curves(threads: Sequence[int]) -> list[ThreadScaling]:
    """Return the curves that times with these thread counts can distinguish, likeliest first."""
    usual = ThreadScaling()
    counts = sorted(set(threads))
    if len(counts) < 2:
        return [usual]
    curves = [usual, *(ThreadScaling(serial) for serial in _SERIAL if serial != usual.serial)]
    # A maximum has an effect only in steps with more threads.
    return curves + [ThreadScaling(0.0, float(count)) for count in counts[:-1]]


# Prior standard deviations of a trainer's relative cost per unit: by kind, because kinds may use different
# input forms, and by trainer.
_KIND_DEVIATION = 0.25
_TRAINER_DEVIATION = 0.1
# Relative model error of a share, and the additional error per factor e by which a share is smaller than the
# largest one, because fixed costs matter more in small shares.
_FORM_ERROR = 0.03
_SMALL_ERROR = 0.05
# A share that takes less than this fraction of its expected minimum time does not use the stage.
_NEGLIGIBLE = 0.02
# Maximum number of periods to fit, newest first.
_MAX_PERIODS = 6


@dataclass(frozen=True, slots=True)
class HostStage:
    """Model of sampling or loading: seconds = one_thread_s · sum(weight · growth(units)) · curve(threads)."""

    one_thread_s: float
    """Time of one unit of work of weight 1 with one thread."""
    weights: tuple[float, ...]
    growth: ShareGrowth
    curve: ThreadScaling

    def share_s(self, trainer: int, units: float) -> float:
        """Return the time of a trainer's share with one thread."""
        return self.one_thread_s * self.weights[trainer] * self.growth.work(units)

    def work_s(self, split: Sequence[float]) -> float:
        """Return the time of the stage in a step with one thread."""
        growth, work = self.growth, 0.0
        for weight, units in zip(self.weights, split, strict=True):
            if units > 0 and weight:
                work += weight * growth.work(units)
        return self.one_thread_s * work

    def seconds(self, split: Sequence[float], threads: int) -> float:
        """Return the time of the stage in a step."""
        return self.work_s(split) * self.curve.relative_time(threads)

    def min_threads(self, work_s: float, within_s: float) -> float:
        """Return the minimum number of threads that do `work_s` within `within_s`, or infinity."""
        return self.curve.min_threads(within_s / work_s) if work_s > 0 else 1


def with_equal_weights(stage: HostStage, shares_s: Floats, units: Floats, threads: int) -> HostStage:
    """Return the stage with equal weights for all trainers, so that shares differ only in size.

    `shares_s` and `units` are float64 [trainers], with 0 for trainers without a share.
    """
    busy = (shares_s > 0) & (units > 0)
    log_seconds = np.log(shares_s[busy])
    growths = possible_growths(float(units.sum()))
    residuals = log_seconds - log_work(growths, units[busy])
    growth = growths[int(np.argmin(residuals.var(axis=1)))]
    needs = tuple(float(weight > 0) for weight in stage.weights)
    equal_stage = HostStage(1.0, needs, growth, stage.curve)
    one_thread_s = float(shares_s.sum()) / equal_stage.seconds(units.tolist(), threads)
    return HostStage(one_thread_s, needs, growth, stage.curve)


def fit_host_stage(
    shares_s: Floats,
    splits: Floats,
    threads: Sequence[int],
    errors: Sequence[float],
    usual: Sequence[float],
    kinds: Sequence[str],
) -> HostStage:
    """Fit a host stage to the times of the shares so that it reproduces the newest step exactly.

    The logarithm of a time is the sum of a constant, the growth, the thread curve, and unknown effects of
    trainer, step and share, which are normal with known standard deviations. The constant and the weights are
    therefore linear in the logarithms (kriging). The most likely pair of growth and curve is selected.

    `shares_s` and `splits` are float64 [periods, trainers], newest period first, with 0 for trainers without
    a share or work. `threads` and the relative `errors` have one value per period. `usual` contains the prior
    weights of the trainers, 0 for a trainer that does not need the stage.
    """
    same = np.array([[one == other for other in kinds] for one in kinds])
    # If a share took almost no time, its device kind does not use the stage, because a time grows at most
    # linearly with the share.
    unit_ratios = np.minimum(1.0, splits[:, :, None] / np.maximum(splits, 1.0)[:, None])
    is_negligible = (splits > 0) & (shares_s <= _NEGLIGIBLE * (unit_ratios * shares_s[:, None]).max(axis=2))
    needs = np.array(usual) * ~(is_negligible.any(axis=0) @ same)
    used = np.flatnonzero((shares_s * needs).any(axis=1))[:_MAX_PERIODS]
    if not len(used):
        return HostStage(0.0, tuple(usual), ShareGrowth(), ThreadScaling())
    rows, trainers = np.nonzero(shares_s[used] * needs)
    periods = used[rows]
    units, log_seconds = splits[periods, trainers], np.log(shares_s[periods, trainers])
    growths = possible_growths(float(splits[0].sum()))
    curves = possible_curves([threads[index] for index in used])
    log_units = log_work(growths, units)
    speeds = np.log([[curve.relative_time(count) for count in threads] for curve in curves])[:, periods]
    residuals = (log_seconds - log_units[:, None] - speeds[None]).reshape(-1, len(log_seconds))
    prior = _KIND_DEVIATION**2 * same + _TRAINER_DEVIATION**2 * np.eye(len(kinds))
    share_errors = _FORM_ERROR + _SMALL_ERROR * np.log(units.max() / units)
    period_errors = (periods[:, None] == periods) * np.square(errors)[periods]
    precision = np.linalg.inv(prior[trainers[:, None], trainers] + period_errors + np.diag(share_errors**2))
    ones = precision.sum(axis=0)
    weighted = residuals @ precision
    constant = weighted.sum(axis=1) / ones.sum()
    cost = ((weighted - constant[:, None] * ones) * residuals).sum(axis=1) / 2
    cost += np.add.outer(
        [growth.prior_penalty for growth in growths], [curve.prior_penalty for curve in curves]
    ).ravel()
    best = int(np.argmin(cost))
    growth, curve = growths[best // len(curves)], curves[best % len(curves)]
    corrections = weighted[best] - constant[best] * ones
    weights = needs * np.exp(prior[:, trainers] @ corrections)
    stage = HostStage(1.0, tuple(weights.tolist()), growth, curve)
    newest = int(used[0])
    one_thread_s = float(shares_s[newest].sum()) / stage.seconds(splits[newest].tolist(), threads[newest])
    return HostStage(one_thread_s, stage.weights, growth, curve)
