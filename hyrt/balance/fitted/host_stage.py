"""Time of sampling and loading on the host, as a function of split and threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hyrt.balance.fitted.growth import Floats, ShareGrowth, logarithms, possible_growths
from hyrt.balance.fitted.thread_curve import ThreadCurve, possible_curves

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
    """Sampling or loading of a step: one_thread_s · sum of weight · growth of the units, times the thread
    curve.
    """

    one_thread_s: float
    """Time of one unit of work with weight 1 and one thread."""
    weights: tuple[float, ...]
    """Weight per trainer."""
    growth: ShareGrowth
    """Growth of a share's work with its units."""
    curve: ThreadCurve
    """Dependence of the time on the threads."""

    def share_s(self, trainer: int, units: float) -> float:
        """Return the single-thread time of a trainer's share."""
        return self.one_thread_s * self.weights[trainer] * self.growth.of(units)

    def work_s(self, split: Sequence[float]) -> float:
        """Return the single-thread time of a step."""
        growth, work = self.growth, 0.0
        for weight, units in zip(self.weights, split, strict=True):
            if units > 0 and weight:
                work += weight * growth.of(units)
        return self.one_thread_s * work

    def seconds(self, split: Sequence[float], threads: int) -> float:
        """Return the time of a step."""
        return self.work_s(split) * self.curve.at(threads)

    def fewest_threads(self, work_s: float, within_s: float) -> float:
        """Return the minimum threads for an amount of work in a time; infinite if no number suffices."""
        return self.curve.fewest(within_s / work_s) if work_s > 0 else 1


def by_size_alone(stage: HostStage, shares_s: Floats, units: Floats, threads: int) -> HostStage:
    """Return the stage with equal trainer weights: its shares differ only by size.

    Parameters
    ----------
    stage
        The fitted stage.
    shares_s, units
        float64 [trainers], time and units of each share in a step; 0 for trainers without a share.
    threads
        Threads of the step.
    """
    busy = (shares_s > 0) & (units > 0)
    log_seconds = np.log(shares_s[busy])
    growths = possible_growths(float(units.sum()))
    residuals = log_seconds - logarithms(growths, units[busy])
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

    Parameters
    ----------
    shares_s, splits
        float64 [periods, trainers], time and units of each share, newest period first; 0 for trainers without
        a share or without work.
    threads, errors
        Threads and relative error of the times, per period.
    usual
        Prior weights of the trainers: 0 for a trainer that does not need the stage.
    kinds
        Kind of each trainer.
    """
    same = np.array([[one == other for other in kinds] for one in kinds])
    # A kind does not need the stage if one of its shares took almost no time: work grows at most in
    # proportion.
    unit_ratios = np.minimum(1.0, splits[:, :, None] / np.maximum(splits, 1.0)[:, None])
    is_negligible = (splits > 0) & (shares_s <= _NEGLIGIBLE * (unit_ratios * shares_s[:, None]).max(axis=2))
    needs = np.array(usual) * ~(is_negligible.any(axis=0) @ same)
    used = np.flatnonzero((shares_s * needs).any(axis=1))[:_MAX_PERIODS]
    if not len(used):
        return HostStage(0.0, tuple(usual), ShareGrowth(), ThreadCurve())
    rows, trainers = np.nonzero(shares_s[used] * needs)
    periods = used[rows]
    units, log_seconds = splits[periods, trainers], np.log(shares_s[periods, trainers])
    growths = possible_growths(float(splits[0].sum()))
    curves = possible_curves([threads[index] for index in used])
    log_work = logarithms(growths, units)
    speeds = np.log([[curve.at(count) for count in threads] for curve in curves])[:, periods]
    residuals = (log_seconds - log_work[:, None] - speeds[None]).reshape(-1, len(log_seconds))
    prior = _KIND_DEVIATION**2 * same + _TRAINER_DEVIATION**2 * np.eye(len(kinds))
    share_errors = _FORM_ERROR + _SMALL_ERROR * np.log(units.max() / units)
    period_errors = (periods[:, None] == periods) * np.square(errors)[periods]
    precision = np.linalg.inv(prior[trainers[:, None], trainers] + period_errors + np.diag(share_errors**2))
    ones = precision.sum(axis=0)
    weighted = residuals @ precision
    constant = weighted.sum(axis=1) / ones.sum()
    cost = ((weighted - constant[:, None] * ones) * residuals).sum(axis=1) / 2
    cost += np.add.outer(
        [growth.surprise for growth in growths], [curve.surprise for curve in curves]
    ).ravel()
    best = int(np.argmin(cost))
    growth, curve = growths[best // len(curves)], curves[best % len(curves)]
    corrections = weighted[best] - constant[best] * ones
    weights = needs * np.exp(prior[:, trainers] @ corrections)
    stage = HostStage(1.0, tuple(weights.tolist()), growth, curve)
    newest = int(used[0])
    one_thread_s = float(shares_s[newest].sum()) / stage.seconds(splits[newest].tolist(), threads[newest])
    return HostStage(one_thread_s, stage.weights, growth, curve)
