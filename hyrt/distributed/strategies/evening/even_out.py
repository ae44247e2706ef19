"""Min-cost assignment of units to ranks with limited capacity."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.placement import Ranks


def cheapest_ranks(costs: NDArray[np.float64], start: NDArray[Any], most: Sequence[int]) -> Ranks:
    """Assign units to ranks at minimum total cost, subject to the ranks' capacities.

    While a rank exceeds its capacity, one unit is moved off it along the cheapest chain of moves over other
    ranks
    (successive shortest paths: exact).

    Parameters
    ----------
    costs
        [n, N] float64, cost of each unit at each rank.
    start
        [n] initial rank of each unit, which must be a cheapest rank; units stay there if possible.
    most
        [N] capacity of each rank; the sum must be at least n.

    Returns
    -------
    [n] int32, rank of each unit.

    Raises
    ------
    ValueError
        If the total capacity is less than n.
    """
    num_units, num_ranks = costs.shape
    if sum(most) < num_units:
        raise ValueError(f"{num_units} units do not fit: the ranks take at most {sum(most)}")
    ranks: Ranks = start.astype(np.int32)
    loads = np.bincount(ranks, minlength=num_ranks)
    capacities = np.asarray(most)
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
