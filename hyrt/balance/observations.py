"""Observations of the latest steps, grouped by assignment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from hyrt_perfmodel.policy import Assignment, Observation
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Columns of a step's times: these four, then propagate, transfer and device sampling of each trainer.
SAMPLE, LOAD, SYNCHRONIZE, ITERATION = range(4)
FIRST_TRAINER = 4

USUAL_NOISE = 0.05
"""Relative standard deviation of a time between steps, assumed if there are too few steps to measure it."""

# A device has changed its speed if the times before and after a step differ by this many standard errors and
# by this much, in at least this many steps; fewer steps may be a transient.
_CHANGE_ERRORS = 5.0
_MIN_CHANGE = 0.14
_CHANGE_STEPS = 3
# A speed has also changed if the time differs by this factor from the time that the units account for, in at
# least this many steps.
_SPEED_RATIO = 1.5
_MIN_STEPS = 2
# Only periods of at least this many steps are tested for drift.
_MIN_DRIFT_STEPS = 10


@dataclass(frozen=True, slots=True)
class Period:
    """Consecutive steps under one assignment."""

    assignment: Assignment
    seconds: Floats
    """float64 [columns], robust mean of each time."""
    steps: Floats
    """float64 [columns], number of steps behind each value of `seconds`."""
    is_past: bool
    """Whether a speed has changed since this period."""
    sample_s: Floats
    load_s: Floats
    """Portion of `seconds` that each trainer caused in sampling and in loading: float64 [trainers]."""


@dataclass(frozen=True, slots=True)
class ObservationHistory:
    """Periods of a history, and the noise of its times."""

    periods: tuple[Period, ...]
    """Newest first. If a device changed its speed, times before the change are scaled to the new speed."""
    noise: Floats
    """float64 [columns], relative standard deviation of each time in the newest period."""
    change: Floats
    """float64 [columns], ratio of times after and before a speed change in the newest period; 1 without a
    change."""

    @property
    def has_changed(self) -> NDArray[np.bool_]:
        """Whether each time's speed changed within the newest period: bool [columns]."""
        result: NDArray[np.bool_] = self.change != 1.0
        return result


def group_history(history: Sequence[Observation], delay: int = 0) -> ObservationHistory:
    """Group a nonempty history, oldest step first, into periods.

    The first `delay` iterations after a change still show the previous assignment, since those steps are in
    flight.
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
        # Test each period separately: a temporary change may have been reverted.
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
    """Return the time of the slowest stage, a lower bound of the iteration."""
    # For so few values, Python's max of a list is faster than numpy's.
    times: list[float] = seconds.tolist()
    after_propagate = FIRST_TRAINER + (len(times) - FIRST_TRAINER) // 3
    propagate_s = max(times[FIRST_TRAINER:after_propagate]) + times[SYNCHRONIZE]
    return max(times[SAMPLE], times[LOAD], propagate_s, *times[after_propagate:])


def _has_other_speed(newest: Period, before: Assignment, seconds: Floats, steps: int) -> bool:
    """Return whether a trainer's speed differs from an older assignment, for any dependence on its units."""
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
    """Return each trainer's share of a stage's time, [periods, trainers], from times [steps, trainers]."""
    sums = np.add.reduceat(seconds, starts, axis=0)
    parts: Floats = sums / np.maximum(sums.sum(axis=1), 1e-12)[:, None]
    return parts


def _speed_change(rows: Floats, delay: int) -> tuple[list[int], Floats]:
    """Return the first row at each column's current speed, and the factor by which its time changed there."""
    count, columns = rows.shape
    unchanged = [0] * columns, np.ones(columns)
    if count < 2 * _CHANGE_STEPS:
        return unchanged
    logs = np.log(np.maximum(rows, 1e-12))
    before = np.arange(_CHANGE_STEPS, count - _CHANGE_STEPS + 1, dtype=np.float64)[:, None]
    sums = np.cumsum(logs, axis=0)[_CHANGE_STEPS - 1 : count - _CHANGE_STEPS]
    shifts = (logs.sum(axis=0) - sums) / (count - before) - sums / before
    # Differences of adjacent steps contain the noise, and at most one jump per change.
    spread = np.maximum(medians(np.abs(logs[1:] - logs[:-1])) / 0.954, USUAL_NOISE)
    errors = np.abs(shifts) * np.sqrt(before * (count - before) / count) / spread
    best = np.argmax(errors, axis=0)
    columns_range = np.arange(columns)
    shift = shifts[best, columns_range]
    is_change = (errors[best, columns_range] > _CHANGE_ERRORS) & (np.abs(shift) > _MIN_CHANGE)
    # The first iterations of a period still show the previous period.
    is_change[ITERATION] = False
    starts = np.where(is_change, best + _CHANGE_STEPS, 0)
    for column in np.flatnonzero(is_change):
        # Medians, because one outlier in three steps shifts a mean.
        start = starts[column]
        shift[column] = medians(logs[start:, column]) - medians(logs[:start, column])
        if abs(shift[column]) <= _MIN_CHANGE:
            is_change[column], starts[column] = False, 0
    if not is_change.any():
        return unchanged
    # Ignore early changes: at first, steps of the previous period still run concurrently.
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
    """Return the median of each column. For so few rows, this is faster than `np.median`."""
    ordered = np.sort(rows, axis=0)
    count = len(ordered)
    result: Floats = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return result


def _noise(rows: Floats, starts: Sequence[int]) -> Floats:
    """Return each column's relative standard deviation since its last change, shrunk to `USUAL_NOISE`."""
    prior_weight = 4.0
    counts = len(rows) - np.array(starts, dtype=np.float64)
    counted = np.arange(len(rows))[:, None] >= np.array(starts)
    mean = (rows * counted).sum(axis=0) / counts
    square = (((rows - mean) * counted) ** 2).sum(axis=0) / np.maximum(mean, 1e-12) ** 2
    result: Floats = np.sqrt((square + prior_weight * USUAL_NOISE**2) / (counts - 1 + prior_weight))
    return result
