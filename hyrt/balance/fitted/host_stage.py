"""How long sampling and loading take on the host, by split and threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt.balance.fitted.growth import ShareGrowth, logarithms, possible_growths
from hyrt.balance.fitted.thread_curve import ThreadCurve, possible_curves

Floats = NDArray[np.float64]

# What a trainer's units cost against those of the others: the same, give or take this much for its kind,
# which may take its input in another form, and for itself.
_KIND_SPREAD = 0.25
_OWN_SPREAD = 0.1
# The form of the model is off by this much for a share, and by so much more for one e times smaller than the
# largest: what does not grow with the units counts in small ones.
_FORM_ERROR = 0.03
_SMALL_ERROR = 0.05
# This part of what a share takes at least, by what the others took, is nothing.
_NOTHING = 0.02
# So many of the newest periods say how the stage is.
_PERIODS = 6


@dataclass(frozen=True, slots=True)
class HostStage:
    """Sampling or loading of a step: one_thread_s · sum of weight · growth of the units, over the threads."""

    one_thread_s: float
    """The time of a trainer with one unit of work, weight 1 and one thread."""
    weights: tuple[float, ...]
    """The weight of each trainer."""
    growth: ShareGrowth
    """How a share's work grows with its units."""
    curve: ThreadCurve
    """How the time depends on the threads."""

    def share_s(self, trainer: int, units: float) -> float:
        """Time of a trainer's share with one thread."""
        return self.one_thread_s * self.weights[trainer] * self.growth.of(units)

    def work_s(self, split: Sequence[float]) -> float:
        """Time of a step with one thread."""
        growth, work = self.growth, 0.0
        for weight, units in zip(self.weights, split, strict=True):
            if units > 0 and weight:
                work += weight * growth.of(units)
        return self.one_thread_s * work

    def seconds(self, split: Sequence[float], threads: int) -> float:
        """Time of a step."""
        return self.work_s(split) * self.curve.at(threads)

    def fewest_threads(self, work_s: float, within_s: float) -> float:
        """Threads that do that work in time; infinite where none do."""
        return self.curve.fewest(within_s / work_s) if work_s > 0 else 1


def by_size_alone(stage: HostStage, shares_s: Floats, units: Floats, threads: int) -> HostStage:
    """The stage if its shares differ by their sizes alone, and not by whose they are.

    Parameters
    ----------
    stage
        What it is otherwise.
    shares_s, units
        float64 [trainers], what each share took in a step, and its units; 0 where there was none.
    threads
        Those of the step.
    """
    busy = (shares_s > 0) & (units > 0)
    took = np.log(shares_s[busy])
    growths = possible_growths(float(units.sum()))
    off = took - logarithms(growths, units[busy])
    growth = growths[int(np.argmin(off.var(axis=1)))]
    needs = tuple(float(weight > 0) for weight in stage.weights)
    other = HostStage(1.0, needs, growth, stage.curve)
    one_thread_s = float(shares_s.sum()) / other.seconds(units.tolist(), threads)
    return HostStage(one_thread_s, needs, growth, stage.curve)


def fit_host_stage(
    shares_s: Floats,
    splits: Floats,
    threads: Sequence[int],
    errors: Sequence[float],
    usual: Sequence[float],
    kinds: Sequence[str],
) -> HostStage:
    """The stage that explains the times of the shares best; the newest step's time is explained exactly.

    The logarithm of a time is a constant, the growth, the curve, and what is not known of trainer, step and
    share: normal, with known spreads. So the constant and the weights are linear in the logarithms (kriging),
    and of all pairs of growth and curve the likeliest counts.

    Parameters
    ----------
    shares_s, splits
        float64 [periods, trainers], time and units of each share, the newest period first; 0 where a trainer
        had none, or needs nothing done.
    threads, errors
        Those of each period; the errors of its times are relative.
    usual
        The trainers' weights where nothing is known: 0 for one that does not need the stage.
    kinds
        The kind of each trainer.
    """
    same = np.array([[one == other for other in kinds] for one in kinds])
    # A kind does not need the stage if a share of it took next to nothing: work grows at most with the units.
    parts = np.minimum(1.0, splits[:, :, None] / np.maximum(splits, 1.0)[:, None])
    nothing = (splits > 0) & (shares_s <= _NOTHING * (parts * shares_s[:, None]).max(axis=2))
    needs = np.array(usual) * ~(nothing.any(axis=0) @ same)
    good = np.flatnonzero((shares_s * needs).any(axis=1))[:_PERIODS]
    if not len(good):
        return HostStage(0.0, tuple(usual), ShareGrowth(), ThreadCurve())
    rows, trainers = np.nonzero(shares_s[good] * needs)
    periods = good[rows]
    units, took = splits[periods, trainers], np.log(shares_s[periods, trainers])
    growths = possible_growths(float(splits[0].sum()))
    curves = possible_curves([threads[index] for index in good])
    grown = logarithms(growths, units)
    speeds = np.log([[curve.at(count) for count in threads] for curve in curves])[:, periods]
    off = (took - grown[:, None] - speeds[None]).reshape(-1, len(took))
    prior = _KIND_SPREAD**2 * same + _OWN_SPREAD**2 * np.eye(len(kinds))
    of_share = _FORM_ERROR + _SMALL_ERROR * np.log(units.max() / units)
    of_period = (periods[:, None] == periods) * np.square(errors)[periods]
    precision = np.linalg.inv(prior[trainers[:, None], trainers] + of_period + np.diag(of_share**2))
    ones = precision.sum(axis=0)
    weighed = off @ precision
    constant = weighed.sum(axis=1) / ones.sum()
    misfit = ((weighed - constant[:, None] * ones) * off).sum(axis=1) / 2
    misfit += np.add.outer(
        [growth.surprise for growth in growths], [curve.surprise for curve in curves]
    ).ravel()
    best = int(np.argmin(misfit))
    growth, curve = growths[best // len(curves)], curves[best % len(curves)]
    known = weighed[best] - constant[best] * ones
    weights = needs * np.exp(prior[:, trainers] @ known)
    stage = HostStage(1.0, tuple(weights.tolist()), growth, curve)
    newest = int(good[0])
    one_thread_s = float(shares_s[newest].sum()) / stage.seconds(splits[newest].tolist(), threads[newest])
    return HostStage(one_thread_s, stage.weights, growth, curve)
