"""Merging of time steps, and when to stop (HopGNN section 5.3)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hyrt.distributed.strategies.strategy import Placement


def merge_smallest_time_step(placement: Placement) -> Placement:
    """Merge the smallest of at least two time steps into the other time steps.

    The time step with the fewest seeds, over all models, is dropped. Each model's seeds of this time step are
    distributed evenly over its other time steps, starting with the time step that has the model's fewest
    seeds. Every model keeps its seeds, and its work stays balanced over time.
    """
    models, times = placement.models, placement.times
    counts = np.zeros((placement.num_ranks, placement.num_times), np.int64)
    np.add.at(counts, (models, times), 1)
    smallest = int(counts.sum(axis=0).argmin())
    remaining = np.delete(np.arange(placement.num_times, dtype=np.int32), smallest)
    new_times = times.copy()
    for model in range(placement.num_ranks):
        displaced = np.flatnonzero((models == model) & (times == smallest))
        by_load = remaining[np.argsort(counts[model, remaining], kind="stable")]
        new_times[displaced] = np.resize(by_load, len(displaced))
    return Placement(
        models=models,
        times=new_times - (new_times > smallest).astype(np.int32),
        paths=placement.paths[remaining],
    )


def decision_lag(steps_per_epoch: int, steps_ahead: int, mixed: float) -> int:
    """Return after how many epochs a decision at the end of an epoch applies; 1 for the next epoch.

    Up to `steps_ahead` steps of the next epoch were already prepared with the previous decision. `mixed` is
    the maximum fraction of an epoch that may use the previous decision. With a larger fraction, the decision
    applies to whole epochs only, from the first epoch without prepared steps.
    """
    return 1 if steps_ahead <= mixed * steps_per_epoch else 1 + math.ceil(steps_ahead / steps_per_epoch)


def num_time_steps(epochs_s: Sequence[float], num_ranks: int, lag: int = 1) -> int:
    """Return the number of time steps in the epoch `lag` epochs after the last of `epochs_s`, in seconds.

    The first epochs have one time step per rank. Then one more time step is merged as long as epochs get
    faster; the first merge that does not help is undone, and the number is final. With a `lag` of several
    epochs (see `decision_lag`), epochs with an earlier number of time steps are ignored.
    """
    numbers, times, previous_s = [num_ranks] * lag, num_ranks, math.inf
    for epoch, seconds in enumerate(epochs_s):
        if numbers[epoch] == times:
            if seconds >= previous_s:
                return min(times + 1, num_ranks)
            if times == 1:
                return 1
            times, previous_s = times - 1, seconds
        numbers.append(times)
    return times
