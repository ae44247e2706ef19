"""Merging time steps of micrographs, and when to stop (HopGNN section 5.3)."""

from __future__ import annotations

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


def num_time_steps(epochs_s: Sequence[float], num_ranks: int) -> int:
    """Into how many time steps the next epoch's iterations are divided.

    The first epoch has one for each rank. From the second on, one more is merged as long as that made the
    last epoch faster than the one before it; where it did not, it is taken back and the number stays.

    Parameters
    ----------
    epochs_s
        How long the epochs took so far, in seconds.
    num_ranks
        The number of ranks.
    """
    times = num_ranks
    for before, after in zip([float("inf"), *epochs_s], epochs_s, strict=False):
        if after >= before:
            return min(times + 1, num_ranks)
        if times == 1:
            return 1
        times -= 1
    return times
