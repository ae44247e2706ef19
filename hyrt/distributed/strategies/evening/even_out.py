"""The cheapest way to give units to ranks that each take so many at most."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.placement import Ranks


def cheapest_ranks(costs: NDArray[np.float64], start: NDArray[Any], most: Sequence[int]) -> Ranks:
    """Assign each unit to a rank so that the sum of the costs is the least and no rank has too many.

    As long as a rank has too many, one unit is moved off it, by way
    of the chain of moves over other ranks that costs least (successive shortest paths: exact).

    Parameters
    ----------
    costs
        [n, N] float64, what each rank costs for each unit.
    start
        [n] a rank for each unit that costs no more than any other, where it stays if it can.
    most
        [N] the most units that each rank takes; together at least n.

    Returns
    -------
    [n] int32, the rank of each unit.

    Raises
    ------
    ValueError
        If the ranks together take fewer than n units.
    """
    num_units, num_ranks = costs.shape
    if sum(most) < num_units:
        raise ValueError(f"{num_units} units do not fit: the ranks take at most {sum(most)}")
    ranks: Ranks = start.astype(np.int32)
    loads = np.bincount(ranks, minlength=num_ranks)
    room = np.asarray(most)
    cheapest, movers = np.empty((num_ranks, num_ranks)), np.empty((num_ranks, num_ranks), np.intp)
    changed = set(range(num_ranks))
    while (loads > room).any():
        for rank in changed:
            _find_movers(costs, ranks, rank, cheapest, movers)
        chain = _cheapest_chain(cheapest, loads > room, loads < room)
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
    """Note the least that moving a unit from one rank to each other costs, and which unit that is."""
    mine = np.flatnonzero(ranks == giver)
    if not len(mine):
        cheapest[giver] = np.inf
        return
    added = costs[mine] - costs[mine, giver][:, None]
    first = added.argmin(axis=0)
    cheapest[giver] = added[first, np.arange(len(first))]
    movers[giver] = mine[first]
    cheapest[giver, giver] = np.inf


def _cheapest_chain(
    moves: NDArray[np.float64], givers: NDArray[np.bool_], takers: NDArray[np.bool_]
) -> list[int]:
    """The ranks of the cheapest chain of moves from a giver to a taker (Bellman and Ford)."""
    reached = np.where(givers, 0.0, np.inf)
    before = np.full(len(reached), -1)
    for _ in range(len(reached)):
        over = reached[:, None] + moves
        giver = over.argmin(axis=0)
        least = over[giver, np.arange(len(reached))]
        closer = least < reached - 1e-12
        if not closer.any():
            break
        reached = np.where(closer, least, reached)
        before = np.where(closer, giver, before)
    chain = [int(np.where(takers, reached, np.inf).argmin())]
    while before[chain[-1]] >= 0:
        chain.append(int(before[chain[-1]]))
    return chain[::-1]
