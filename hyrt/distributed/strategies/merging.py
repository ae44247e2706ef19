"""Merging time steps of micrographs, and when to stop (HopGNN section 5.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hyrt.distributed.strategies.placement import Placement


def merged(placement: Placement) -> Placement:
    """The placement without its smallest time step.

    The time step with the fewest roots, over all models, goes; the roots that a model had in it are dealt
    evenly to the model's other time steps, the one with the fewest roots of the model first. So every model
    keeps its roots, and what it does at different times stays balanced.

    Parameters
    ----------
    placement
        A step's, with at least two time steps.
    """
    models, times = placement.models, placement.times
    counts = np.zeros((placement.num_ranks, placement.num_times), np.int64)
    np.add.at(counts, (models, times), 1)
    smallest = int(counts.sum(axis=0).argmin())
    left = np.delete(np.arange(placement.num_times, dtype=np.int32), smallest)
    found = times.copy()
    for model in range(placement.num_ranks):
        homeless = np.flatnonzero((models == model) & (times == smallest))
        fewest_first = left[np.argsort(counts[model, left], kind="stable")]
        found[homeless] = np.resize(fewest_first, len(homeless))
    return Placement(
        models=models,
        times=found - (found > smallest).astype(np.int32),
        paths=placement.paths[left],
    )


def decision_lag(steps_per_epoch: int, steps_ahead: int, mixed: float) -> int:
    """Return after how many epochs a decision at the end of an epoch applies to an epoch: 1 for the next.

    Parameters
    ----------
    steps_per_epoch
        The length of an epoch.
    steps_ahead
        How many steps of the next epoch may have been prepared before, by the decision before.
    mixed
        The largest share of an epoch that may be of the decision before; with a larger share, the decision
        applies to whole epochs alone, as soon as none of their steps can have been prepared.
    """
    return 1 if steps_ahead <= mixed * steps_per_epoch else 1 + math.ceil(steps_ahead / steps_per_epoch)


def num_time_steps(epochs_s: Sequence[float], num_ranks: int, lag: int = 1) -> int:
    """Return the number of time steps of each step in the epoch that is `lag` after the last of these.

    The first epochs have one for each rank. Then one more is merged as long as that makes epochs faster; if
    it does not, it is taken back and the number stays. An epoch counts for the number that it had: with a lag
    of several epochs, those that had an earlier number say nothing.

    Parameters
    ----------
    epochs_s
        How long the epochs took so far, in seconds.
    num_ranks
        The number of ranks.
    lag
        From `decision_lag`.
    """
    numbers, times, before = [num_ranks] * lag, num_ranks, math.inf
    for epoch, seconds in enumerate(epochs_s):
        if numbers[epoch] == times:
            if seconds >= before:
                return min(times + 1, num_ranks)
            if times == 1:
                return 1
            times, before = times - 1, seconds
        numbers.append(times)
    return times
