"""HopGNN strategy, in which models migrate to the features, and the merging of its time steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.strategy import (
    Counts,
    InputBlock,
    Placement,
    Seeds,
    Traffic,
    split_in_order,
    traffic_with_pregather,
    traffic_without_pregather,
)


def merge_smallest_time_step(placement: Placement) -> Placement:
    """Merge the smallest time step into the other time steps, of which there must be at least one.

    The time step with the fewest seeds, over all models, is dropped. Each model's seeds of this time step are
    distributed evenly over its other time steps, starting with the time step in which the model has the
    fewest seeds. Every model keeps its seeds, and its work stays balanced over time.
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
    """Return the number of epochs after which a decision takes effect; 1 means the next epoch.

    When an epoch ends, up to `steps_ahead` steps of the next epoch have already been prepared with the
    previous decision. `mixed` is the maximum fraction of an epoch that may use the previous decision. If the
    prepared steps exceed it, the decision takes effect in the first epoch without prepared steps.
    """
    return 1 if steps_ahead <= mixed * steps_per_epoch else 1 + math.ceil(steps_ahead / steps_per_epoch)


def num_time_steps(epochs_s: Sequence[float], num_ranks: int, lag: int = 1) -> int:
    """Return the number of time steps in the epoch that is `lag` epochs after the last of `epochs_s`.

    `epochs_s` are the epoch times in seconds. The first epochs have one time step per rank. Then one more
    time step is merged as long as epochs get faster; the first merge that does not help is undone, and the
    number is final. With a `lag` of several epochs (see `decision_lag`), epochs with an earlier number of
    time steps are ignored.
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


@dataclass(frozen=True, slots=True)
class HopGnnStrategy:
    """Strategy in which each model visits the owners of its seeds, and trains them there.

    Model d is at rank (d + t) mod N at time step t, with its gradient sums (HopGNN section 5.1).

    Parameters
    ----------
    pre_gather
        Whether a rank fetches its remote rows once for all time steps (section 5.2), instead of in each.
    num_times
        Number of time steps after merging (section 5.3), 1 to N; None for N.
    """

    pre_gather: bool = True
    num_times: int | None = None
    name = "hopgnn"
    description = "models, which visit the homes of their roots in turn, and the rows that those homes lack"
    refuses = ("links", "subgraph_units", "rank_shares")
    draws_locally = False

    def __post_init__(self) -> None:
        if self.num_times is not None and self.num_times < 1:
            raise ValueError(f"num_times must be at least 1, got {self.num_times}")

    def place(self, seeds: Seeds) -> Placement:
        """Place each seed at its owner, when its model is there; then merge time steps."""
        num_ranks = seeds.num_ranks
        models = split_in_order(len(seeds.owners), num_ranks)
        ranks = np.arange(num_ranks, dtype=np.int32)
        placement = Placement(
            models=models,
            times=(seeds.owners.astype(np.int32) - models) % num_ranks,
            paths=(ranks[:, None] + ranks[None]) % num_ranks,
        )
        for _ in range(num_ranks - min(self.num_times or num_ranks, num_ranks)):
            placement = merge_smallest_time_step(placement)
        return placement

    def traffic(self, placement: Placement, owners: NDArray[Any], sampled: InputBlock) -> Traffic:
        """Count the remote rows, and the migrations of models between time steps."""
        count_rows = traffic_with_pregather if self.pre_gather else traffic_without_pregather
        return replace(count_rows(placement, owners, sampled), models=_migrations(placement))


def _migrations(placement: Placement) -> Counts:
    num = placement.num_ranks
    moves = np.zeros((num, num), np.int64)
    for origins, targets in zip(placement.paths[:-1], placement.paths[1:], strict=True):
        np.add.at(moves, (origins, targets), 1)
    return moves
