"""Models of stage times: growth of work with the share size, scaling with threads, and host stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShareGrowth:
    """Work of a share: units ** power, or the number of distinct items if the growth has a bound.

    A mini-batch of twice the size has less than twice the vertices because of duplicates. With a bound, each
    unit covers a random part of everything: bound · (1 - exp(-units / bound)).
    """

    power: float = 1.0
    """At most 1."""
    bound: float = math.inf
    """Maximum work of a share, in units."""
    prior_penalty: float = 0.0

    @property
    def is_proportional(self) -> bool:
        """Whether twice the units are twice the work."""
        return self.power == 1 and self.bound == math.inf

    def work(self, units: float) -> float:
        """Return the work of a number of units."""
        if self.bound < math.inf:
            return -self.bound * math.expm1(-units / self.bound)
        return float(units) if self.power == 1 else float(units) ** self.power

    def work_of_all(self, units: Floats) -> Floats:
        """Return the work of each number of units."""
        if self.bound < math.inf:
            return -self.bound * np.expm1(-units / self.bound)
        result: Floats = np.power(units, self.power) * (units > 0)
        return result

    def units(self, work: float) -> float:
        """Return the number of units with that work; infinite if `work` is not below the bound."""
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
    """Return the distinguishable growths for steps of `total` units: powers, usual one first, then bounds."""
    powers = tuple(
        ShareGrowth(power=power, prior_penalty=(power - _USUAL_POWER) ** 2 / (2 * _POWER_DEVIATION**2))
        for power in _POWERS
    )
    return powers + tuple(
        ShareGrowth(bound=fraction * total, prior_penalty=_BOUND_PENALTY) for fraction in _BOUNDS
    )


def log_work(growths: Sequence[ShareGrowth], units: Floats) -> Floats:
    """Return log work, float64 [growths, units]; `growths` has powers first, then bounds."""
    powers = np.array([growth.power for growth in growths if growth.bound == math.inf])[:, None]
    bounds = np.array([growth.bound for growth in growths if growth.bound < math.inf])[:, None]
    return np.concatenate([powers * np.log(units), np.log(-bounds * np.expm1(-units / bounds))])


@dataclass(frozen=True, slots=True)
class ThreadScaling:
    """Time with k threads relative to one: serial + (1 - serial) / min(k, maximum)."""

    serial: float = 0.02
    """Serial fraction (Amdahl's law)."""
    max_threads: float = math.inf
    """Maximum useful number of threads: with more threads, memory bandwidth is saturated."""

    @property
    def prior_penalty(self) -> float:
        """Prior penalty: usually, almost all of a stage runs in parallel."""
        return 2 * abs(self.serial - 0.02) + (0.5 if self.max_threads < math.inf else 0.0)

    def relative_time(self, threads: float) -> float:
        """Return the time with that many threads relative to one thread."""
        return self.serial + (1 - self.serial) / min(threads, self.max_threads)

    def min_threads(self, relative: float) -> float:
        """Return the minimum threads with relative time of at most `relative`; infinite if there are none."""
        if relative <= self.serial:
            return math.inf
        count = (1 - self.serial) / (relative - self.serial)
        return max(1, math.ceil(count - 1e-9)) if count <= self.max_threads + 1e-9 else math.inf


_SERIAL = (0.0, 0.02, 0.06, 0.12, 0.25, 0.5, 1.0)


def possible_curves(threads: Sequence[int]) -> list[ThreadScaling]:
    """Return the curves that times with these numbers of threads can distinguish, the usual one first."""
    usual = ThreadScaling()
    counts = sorted(set(threads))
    if len(counts) < 2:
        return [usual]
    curves = [usual, *(ThreadScaling(serial) for serial in _SERIAL if serial != usual.serial)]
    # A limit is visible only in steps with more threads.
    return curves + [ThreadScaling(0.0, float(count)) for count in counts[:-1]]


# Prior standard deviations of a trainer's cost per unit relative to others: for its kind, which may use
# another input form, and for the trainer itself.
_KIND_DEVIATION = 0.25
_TRAINER_DEVIATION = 0.1
# Relative error of the model form for a share, plus an error per e-fold reduction relative to the largest
# share: fixed costs matter in small shares.
_FORM_ERROR = 0.03
_SMALL_ERROR = 0.05
# A share that takes less than this fraction of its expected minimum takes no time.
_NEGLIGIBLE = 0.02
# Number of newest periods to fit.
_MAX_PERIODS = 6


@dataclass(frozen=True, slots=True)
class HostStage:
    """Sampling or loading of a step: one_thread_s · sum(weight · growth(units)) · curve(threads)."""

    one_thread_s: float
    """Time of one unit of work with weight 1 and one thread."""
    weights: tuple[float, ...]
    growth: ShareGrowth
    curve: ThreadScaling

    def share_s(self, trainer: int, units: float) -> float:
        """Return the single-thread time of a trainer's share."""
        return self.one_thread_s * self.weights[trainer] * self.growth.work(units)

    def work_s(self, split: Sequence[float]) -> float:
        """Return the single-thread time of a step."""
        growth, work = self.growth, 0.0
        for weight, units in zip(self.weights, split, strict=True):
            if units > 0 and weight:
                work += weight * growth.work(units)
        return self.one_thread_s * work

    def seconds(self, split: Sequence[float], threads: int) -> float:
        """Return the time of a step."""
        return self.work_s(split) * self.curve.relative_time(threads)

    def min_threads(self, work_s: float, within_s: float) -> float:
        """Return the minimum threads that do `work_s` within a time; infinite if there are none."""
        return self.curve.min_threads(within_s / work_s) if work_s > 0 else 1


def with_equal_weights(stage: HostStage, shares_s: Floats, units: Floats, threads: int) -> HostStage:
    """Return the stage with equal weights, so that its shares differ only in size.

    `shares_s` and `units` are float64 [trainers], 0 for trainers without a share.
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
    """Fit the stage to the times of the shares; it reproduces the newest step exactly.

    The logarithm of a time is a constant, plus growth, plus thread curve, plus unknown effects of trainer,
    step and share, which are normal with known standard deviations. Constant and weights are therefore linear
    in the logarithms (kriging), and the most likely pair of growth and curve is selected.

    `shares_s` and `splits` are float64 [periods, trainers], newest period first, 0 for trainers without a
    share or work; `threads` and the relative `errors` are per period. `usual` has prior weights of the
    trainers, 0 for one that does not need the stage.
    """
    same = np.array([[one == other for other in kinds] for one in kinds])
    # A kind does not need the stage if one of its shares took almost no time: work grows at most in
    # proportion.
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
