"""Load balancing of ranks: min-cost assignment with limited capacity, and shares by measured speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.strategy import Ranks


def min_cost_assignment(costs: NDArray[np.float64], start: NDArray[Any], max_units: Sequence[int]) -> Ranks:
    """Assign units to ranks at minimum total cost, subject to the ranks' capacities; return ranks [n] int32.

    While a rank exceeds its capacity, one unit is moved off it along the cheapest chain of moves over other
    ranks (successive shortest paths: exact). `costs` is float64 [n, N]. `start` [n] is a cheapest rank of
    each unit, at which it stays if possible. `max_units` [N] are the capacities. Raises ValueError if the
    total capacity is less than n.
    """
    num_units, num_ranks = costs.shape
    if sum(max_units) < num_units:
        raise ValueError(f"{num_units} units do not fit: the ranks take at most {sum(max_units)}")
    ranks: Ranks = start.astype(np.int32)
    loads = np.bincount(ranks, minlength=num_ranks)
    capacities = np.asarray(max_units)
    cheapest, movers = np.empty((num_ranks, num_ranks)), np.empty((num_ranks, num_ranks), np.intp)
    changed = set(range(num_ranks))
    while (loads > capacities).any():
        for rank in changed:
            _find_movers(costs, ranks, rank, cheapest, movers)
        chain = _cheapest_chain(cheapest, loads > capacities, loads < capacities)
        for giver, taker in pairwise(chain):
            ranks[movers[giver, taker]] = taker
        loads[chain[0]] -= 1
        loads[chain[-1]] += 1
        changed = set(chain)
    return ranks


def _find_movers(
    costs: NDArray[np.float64],
    ranks: Ranks,
    giver: int,
    cheapest: NDArray[np.float64],
    movers: NDArray[np.intp],
) -> None:
    """Find the cheapest unit to move from one rank to each other rank, and its cost."""
    units = np.flatnonzero(ranks == giver)
    if not len(units):
        cheapest[giver] = np.inf
        return
    cost_increase = costs[units] - costs[units, giver][:, None]
    first = cost_increase.argmin(axis=0)
    cheapest[giver] = cost_increase[first, np.arange(len(first))]
    movers[giver] = units[first]
    cheapest[giver, giver] = np.inf


def _cheapest_chain(
    moves: NDArray[np.float64], givers: NDArray[np.bool_], takers: NDArray[np.bool_]
) -> list[int]:
    """Return the ranks on the cheapest chain of moves from a giver to a taker (Bellman-Ford)."""
    distances = np.where(givers, 0.0, np.inf)
    previous = np.full(len(distances), -1)
    for _ in range(len(distances)):
        candidates = distances[:, None] + moves
        giver = candidates.argmin(axis=0)
        shortest = candidates[giver, np.arange(len(distances))]
        is_shorter = shortest < distances - 1e-12
        if not is_shorter.any():
            break
        distances = np.where(is_shorter, shortest, distances)
        previous = np.where(is_shorter, giver, previous)
    chain = [int(np.where(takers, distances, np.inf).argmin())]
    while previous[chain[-1]] >= 0:
        chain.append(int(previous[chain[-1]]))
    return chain[::-1]


# Minimum relative improvement for a change of shares: epoch times vary by about as much.
_MIN_IMPROVEMENT = 0.95


@dataclass(frozen=True, slots=True)
class MeasuredEpoch:
    seconds: float
    """Duration in seconds, at rank 0."""
    speeds: tuple[float | None, ...]
    """Units per second of each rank's slowest stage, [N], without waits for other ranks; None for ranks
    without units."""


def speed_weighted_shares(epochs: Sequence[MeasuredEpoch], num_ranks: int, lag: int = 1) -> tuple[float, ...]:
    """Return the ranks' shares of a step, with sum 1, in the epoch `lag` epochs after the last one.

    All shares are equal at first. After each epoch except the first, which includes compilation, they are set
    so that all ranks would take the same time, if that makes the slowest rank faster by more than 5 %. If an
    epoch with changed shares was not faster than the epoch before, the bottleneck is elsewhere: the previous
    shares are restored and kept. A change takes effect after `lag` epochs; epochs in between are ignored.
    """
    shares = (1 / num_ranks,) * num_ranks
    previous: tuple[tuple[float, ...], float] | None = None
    acts_from = 1
    for number, epoch in enumerate(epochs):
        if number < acts_from:
            continue
        if previous is not None and epoch.seconds >= previous[1]:
            return previous[0]
        measured_speeds = [speed for speed in epoch.speeds if speed is not None]
        if not measured_speeds:
            continue
        speeds = [min(measured_speeds) if speed is None else speed for speed in epoch.speeds]
        slowest_s = max(share / speed for share, speed in zip(shares, speeds, strict=True))
        previous = None
        if 1 / sum(speeds) < _MIN_IMPROVEMENT * slowest_s:
            previous = shares, epoch.seconds
            shares = tuple(speed / sum(speeds) for speed in speeds)
            acts_from = number + lag
    return shares
