"""What the latest steps say, gathered by the assignment they ran under."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.policy import Observation
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Columns of a step's times: these, then propagate, transfer and sampling on the device, one a trainer each.
SAMPLE, LOAD, SYNCHRONIZE, ITERATION = range(4)
FIRST_TRAINER = 4

USUAL_NOISE = 0.05
"""Relative spread of a time from step to step, where too few steps are there to measure it."""

# A device changed where the times after a step differ from those before by so many standard errors, by so
# much, in at least so many steps; fewer may be a hiccup.
_CHANGE_ERRORS = 5.0
_CHANGE_PART = 0.14
_CHANGE_STEPS = 3
# So it did where it took so many times as long, or as short, as its units account for, in at least so many
# steps.
_OTHER = 1.5
_LEAST_STEPS = 2
# Older periods are searched for changes where they are so long.
_LONG_STEPS = 10


@dataclass(frozen=True, slots=True)
class Period:
    """Steps in a row under one assignment."""

    assignment: Assignment
    """The assignment that they ran under."""
    seconds: Floats
    """float64 [columns], the middle of each time."""
    steps: Floats
    """How many steps speak for `seconds`, float64 [columns]."""
    is_past: bool
    """Whether something has changed its speed since."""
    sample_s: Floats
    load_s: Floats
    """`sample_s` and `load_s`: float64 [trainers], each trainer's part of `seconds`."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The periods of a history, and how far a time can be trusted."""

    periods: tuple[Period, ...]
    """Newest first. Where a device changed its speed, times from before the change are scaled to what they
    would be now."""
    noise: Floats
    """float64 [columns], relative spread of each time in the newest period."""
    change: Floats
    """float64 [columns], what times took after a change of speed within the newest period over before; 1
    without one."""

    @property
    def changed(self) -> NDArray[np.bool_]:
        """What changed its speed within the newest period: bool [columns]."""
        result: NDArray[np.bool_] = self.change != 1.0
        return result


def gather(history: Sequence[Observation], delay: int = 0) -> Evidence:
    """The evidence of a history.

    Parameters
    ----------
    history
        The observations, oldest first; not empty.
    delay
        Steps that are in flight: after a change, so many more iterations still show what was before.
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
    sample_parts, load_parts = _parts(sampled, starts), _parts(loaded, starts)
    periods: list[Period] = []
    unchanged = np.ones(rows.shape[1])
    is_past = False
    factor = noise = newest_change = unchanged
    end = len(history)
    for place, start in reversed(list(enumerate(starts))):
        part = rows[start:end]
        changed_at, change = [0], unchanged
        if not periods or len(part) >= _LONG_STEPS:
            changed_at, change = _change(part, delay)
        if any(changed_at):
            level = np.array([_middle(part[at:, column]) for column, at in enumerate(changed_at)])
            steps = np.array([len(part) - at for at in changed_at], dtype=np.float64)
        else:
            level, steps = _middles(part), unchanged * len(part)
        if not periods:
            noise, newest_change = _noise(part, changed_at), change
        settled = part[max(changed_at) + delay :, ITERATION]
        level[ITERATION] = max(_middle(settled) if len(settled) > 1 else 0.0, slowest(level))
        seconds = level * factor
        sample_s, load_s = sample_parts[place] * seconds[SAMPLE], load_parts[place] * seconds[LOAD]
        # Each is judged alone: what was different for a while may be as it was again.
        is_other = is_past or (
            bool(periods) and _is_other(periods[0], history[start].assignment, seconds, len(part))
        )
        periods.append(Period(history[start].assignment, seconds, steps, is_other, sample_s, load_s))
        if change is not unchanged:
            factor = factor * change
            is_past = is_past or bool((change != 1.0).any())
        end = start
    return Evidence(tuple(periods), noise, newest_change)


def slowest(seconds: Floats) -> float:
    """The slowest stage: no iteration is shorter."""
    # A list: of so few numbers, Python's own maximum is found sooner than numpy's.
    times: list[float] = seconds.tolist()
    after_propagate = FIRST_TRAINER + (len(times) - FIRST_TRAINER) // 3
    propagate_s = max(times[FIRST_TRAINER:after_propagate]) + times[SYNCHRONIZE]
    return max(times[SAMPLE], times[LOAD], propagate_s, *times[after_propagate:])


def _is_other(newest: Period, before: Assignment, seconds: Floats, steps: int) -> bool:
    """Whether a trainer's speed has changed since an older assignment, whichever part goes with its units."""
    if min(steps, float(newest.steps.min())) < _LEAST_STEPS:
        return False
    more_threads = before.threads.train / newest.assignment.threads.train
    present = newest.assignment.split
    propagate_s = slice(FIRST_TRAINER, FIRST_TRAINER + len(present))
    old_s, new_s = seconds[propagate_s].tolist(), newest.seconds[propagate_s].tolist()
    for old, new, then, now in zip(before.split, present, old_s, new_s, strict=True):
        if not (old and new and then > 0 and now > 0):
            continue
        more_units = new / old
        parts = (1.0, more_units, more_threads, more_units * more_threads)
        if not min(parts) / _OTHER < now / then < max(parts) * _OTHER:
            return True
    return False


def _parts(seconds: Floats, starts: Sequence[int]) -> Floats:
    """[periods, trainers] of [steps, trainers]: what part of a stage's time each trainer's share took."""
    sums = np.add.reduceat(seconds, starts, axis=0)
    parts: Floats = sums / np.maximum(sums.sum(axis=1), 1e-12)[:, None]
    return parts


def _change(rows: Floats, delay: int) -> tuple[list[int], Floats]:
    """From which row on each column's present speed counts, and the factor that its times took there."""
    count, columns = rows.shape
    unchanged = [0] * columns, np.ones(columns)
    if count < 2 * _CHANGE_STEPS:
        return unchanged
    logs = np.log(np.maximum(rows, 1e-12))
    before = np.arange(_CHANGE_STEPS, count - _CHANGE_STEPS + 1, dtype=np.float64)[:, None]
    sums = np.cumsum(logs, axis=0)[_CHANGE_STEPS - 1 : count - _CHANGE_STEPS]
    shifts = (logs.sum(axis=0) - sums) / (count - before) - sums / before
    # Differences of neighbours hold the noise, and at most one jump each.
    spread = np.maximum(medians(np.abs(logs[1:] - logs[:-1])) / 0.954, USUAL_NOISE)
    errors = np.abs(shifts) * np.sqrt(before * (count - before) / count) / spread
    best = np.argmax(errors, axis=0)
    every = np.arange(columns)
    shift = shifts[best, every]
    is_change = (errors[best, every] > _CHANGE_ERRORS) & (np.abs(shift) > _CHANGE_PART)
    # The first iterations of a period still show the one before.
    is_change[ITERATION] = False
    starts = np.where(is_change, best + _CHANGE_STEPS, 0)
    for column in np.flatnonzero(is_change):
        # Medians: one hiccup in three steps moves a mean.
        at = starts[column]
        shift[column] = medians(logs[at:, column]) - medians(logs[:at, column])
        if abs(shift[column]) <= _CHANGE_PART:
            is_change[column], starts[column] = False, 0
    if not is_change.any():
        return unchanged
    # What runs beside them are at first still steps of the period before.
    lasting = is_change & (starts > delay + _CHANGE_STEPS)
    return [int(start) for start in starts], np.where(lasting, np.exp(shift), 1.0)


def _middle(values: Floats) -> float:
    """Mean of the middle half: no hiccup counts."""
    return float(_middles(values))


def _middles(rows: Floats) -> Floats:
    """`_middle` of each column."""
    ordered = np.sort(rows, axis=0)
    cut = len(ordered) // 4
    result: Floats = np.add.reduce(ordered[cut : len(ordered) - cut]) / (len(ordered) - 2 * cut)
    return result


def medians(rows: Floats) -> Floats:
    """The median of each column: on so few rows, `np.median` takes longer to start than to sort."""
    ordered = np.sort(rows, axis=0)
    count = len(ordered)
    result: Floats = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    return result


def _noise(rows: Floats, starts: Sequence[int]) -> Floats:
    """Relative spread of each column since its last change, drawn to the usual one where steps are few."""
    known = 4.0
    counts = len(rows) - np.array(starts, dtype=np.float64)
    counted = np.arange(len(rows))[:, None] >= np.array(starts)
    mean = (rows * counted).sum(axis=0) / counts
    square = (((rows - mean) * counted) ** 2).sum(axis=0) / np.maximum(mean, 1e-12) ** 2
    result: Floats = np.sqrt((square + known * USUAL_NOISE**2) / (counts - 1 + known))
    return result
