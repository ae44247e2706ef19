"""How long sampling and loading take on the host, by split and threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt.balance.fitted.thread_curve import ThreadCurve, possible_curves

Floats = NDArray[np.float64]

# A mini-batch twice as large has less than twice the vertices, since some are met again: units ** power, and
# how far that usually is from the first of these.
_USUAL_POWER = 0.9
_POWERS = np.array([1.0, 0.9, 0.8, 0.65, 0.5, 0.3, 0.15])
_POWER_SPREAD = 0.15
# What a trainer's targets cost against those of the others: the same, give or take this much for its kind,
# which may take its input in another form, and for itself.
_KIND_SPREAD = 0.25
_OWN_SPREAD = 0.1
_MOST_WEIGHT = 1.2
# No single period counts more than one that is this many errors off.
_MOST_ERRORS = 5.0


@dataclass(frozen=True, slots=True)
class HostStage:
    """Sampling or loading of a step: one_thread_s · sum of weight · units ** power, over the threads."""

    one_thread_s: float
    """The time of a trainer with one unit, weight 1 and one thread."""
    weights: tuple[float, ...]
    """The weight of each trainer."""
    power: float
    """The power of the units."""
    curve: ThreadCurve
    """How the time depends on the threads."""

    def work_s(self, split: Sequence[float]) -> float:
        """Time of a step with one thread."""
        power, work = self.power, 0.0
        for weight, units in zip(self.weights, split, strict=True):
            if units > 0:
                work += weight * float(units) ** power
        return self.one_thread_s * work

    def seconds(self, split: Sequence[float], threads: int) -> float:
        """Time of a step."""
        return self.work_s(split) * self.curve.at(threads)

    def fewest_threads(self, work_s: float, within_s: float) -> float:
        """Threads that do that work in time; infinite where none do."""
        return self.curve.fewest(within_s / work_s) if work_s > 0 else 1


def fit_host_stage(
    seconds: Sequence[float],
    splits: Floats,
    threads: Sequence[int],
    errors: Sequence[float],
    usual: Sequence[float],
    kinds: Sequence[str],
) -> HostStage:
    """The stage that explains times best, the newest one exactly, and is much like stages usually are.

    Parameters
    ----------
    seconds, threads, errors
        Those of each period, the newest first; the errors are relative.
    splits
        float64 [periods, trainers].
    usual
        The trainers' weights: 0 for one that does not need the stage.
    kinds
        The kind of each trainer.
    """
    weights = np.array(usual)
    same = np.array([[one == other for other in kinds] for one in kinds])
    # A kind that had units in a step without the stage does not need it.
    without = splits[[index for index, time in enumerate(seconds) if time <= 0]].any(axis=0)
    weights[same @ without] = 0.0
    good = [index for index, time in enumerate(seconds) if time > 0 and splits[index] @ weights > 0]
    if not good:
        return HostStage(0.0, tuple(usual), 1.0, ThreadCurve())
    curves = possible_curves([threads[index] for index in good])
    took = np.array([seconds[index] for index in good])
    spreads = np.array([errors[index] for index in good])
    chosen = splits[good]
    # [powers, periods] and [curves, periods]: all pairs are tried.
    powers = np.power(chosen[None], _POWERS[:, None, None]) * (chosen > 0)
    work = np.log(powers @ weights)
    counts = np.array([threads[index] for index in good], dtype=np.float64)
    serial = np.array([curve.serial for curve in curves])[:, None]
    most = np.array([curve.most for curve in curves])[:, None]
    speed = np.log(serial + (1 - serial) / np.minimum(counts, most))
    expected = (work - work[:, :1])[:, None] + (speed - speed[:, :1])[None]
    off = (expected - np.log(took / took[0])) / spreads
    misfit = np.minimum(off**2, _MOST_ERRORS**2).sum(axis=2) / 2
    misfit += ((_POWERS - _USUAL_POWER) ** 2 / (2 * _POWER_SPREAD**2))[:, None]
    misfit += np.array([curve.surprise for curve in curves])
    best = int(np.argmin(misfit))
    at, curve = best // len(curves), curves[best % len(curves)]
    if len(good) > 1:
        relative = np.exp(speed[best % len(curves)])
        weights = _weights(powers[at], took / relative, spreads, weights, kinds)
    start = float(powers[at][0] @ weights)
    if start <= 0:
        return HostStage(0.0, tuple(usual), 1.0, ThreadCurve())
    one_thread_s = float(took[0]) / start / curve.at(threads[good[0]])
    return HostStage(one_thread_s, tuple(weights.tolist()), float(_POWERS[at]), curve)


def _weights(units: Floats, work: Floats, spreads: Floats, expected: Floats, kinds: Sequence[str]) -> Floats:
    """What each trainer costs, by least squares that stay near what is usual (ridge regression)."""
    scale = work[0] / (units[0] @ expected)
    rows = units * scale / (work * spreads)[:, None]
    off = 1 / spreads - rows @ expected
    same = np.array([[one == other for other in kinds] for one in kinds])
    prior = _KIND_SPREAD**2 * same + _OWN_SPREAD**2 * np.eye(len(kinds))
    prior *= (expected > 0)[:, None] * (expected > 0)
    gain = prior @ rows.T
    result: Floats = np.maximum(expected + gain @ np.linalg.solve(rows @ gain + np.eye(len(rows)), off), 0.0)
    return result
