"""Load balancing of ranks: expected remote rows, min-cost assignment, and shares by measured speed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.strategy import Ranks, Seeds, Strategy
from hyrt.graph.topology import Topology
from hyrt.sampling.hotness import HotnessRanking, expected_accesses


def expected_remote_rows(
    topology: Topology, seeds: NDArray[Any], owners: NDArray[Any], num_ranks: int, fanout: int
) -> NDArray[np.float64]:
    """Compute the expected number of rows that each rank would have to fetch to train each seed.

    Only the seed and its sampled neighbours count, at the cost of one pass over the seeds' edges. Further
    hops correlate with the first one, because a part contains most neighbours of its vertices. `seeds` [n]
    are distinct vertices, `owners` [V] the owner ranks, and `fanout` is -1 for all neighbours. Return float64
    [n, N].
    """
    starts, degrees = topology.indptr[seeds], topology.in_degrees[seeds].astype(np.int64)
    rows = np.repeat(np.arange(len(seeds)), degrees)
    first = np.repeat(np.cumsum(degrees) - degrees, degrees)
    edges = np.arange(len(rows)) - first + np.repeat(starts, degrees)
    source_owners = owners[topology.indices[edges]].astype(np.int64)
    neighbors_per_owner = np.bincount(rows * num_ranks + source_owners, minlength=len(seeds) * num_ranks)
    num_sampled = degrees if fanout < 0 else np.minimum(degrees, fanout)
    local = (
        neighbors_per_owner.reshape(len(seeds), num_ranks) * (num_sampled / np.maximum(degrees, 1))[:, None]
    )
    local[np.arange(len(seeds)), owners[seeds].astype(np.intp)] += 1
    remote: NDArray[np.float64] = (num_sampled + 1)[:, None] - local
    return remote


def remote_reads(
    topology: Topology,
    targets: NDArray[Any],
    owners: NDArray[Any],
    rank: int,
    num_ranks: int,
    strategy: Strategy,
    batch_size: int,
    fanouts: Sequence[int],
    same_host_ranks: Collection[int] = (),
) -> HotnessRanking:
    """Compute how often a rank is expected to fetch each remote row with a given strategy.

    `targets` [n] are the training vertices, and `owners` [V] the owner ranks. `strategy` is called once for
    all targets; load balancing of single steps is ignored. `batch_size` is the number of targets per step
    over all ranks. `fanouts` starts with the targets' layer; -1 takes all neighbours. Rows of
    `same_host_ranks` are read through shared memory and are never fetched.
    """
    target_owners = owners[targets]
    placed = strategy.place(Seeds(target_owners, num_ranks)).ranks
    targets_per_owner = np.bincount(target_owners, minlength=num_ranks)
    trained_share = np.bincount(target_owners[placed == rank], minlength=num_ranks) / np.maximum(
        targets_per_owner, 1
    )
    weights = np.zeros(topology.num_vertices)
    weights[targets] = trained_share[target_owners] / len(targets)
    steps, remainder = divmod(len(targets), batch_size)
    batches = [batch_size] * steps + [remainder] * bool(remainder)
    reads = expected_accesses(topology, weights, batches, fanouts)
    reads[np.isin(owners, [rank, *same_host_ranks])] = 0
    return HotnessRanking.from_accesses(reads, topology.indices.dtype)


def min_cost_assignment(costs: NDArray[np.float64], start: NDArray[Any], max_units: Sequence[int]) -> Ranks:
    """Assign units to ranks at minimum total cost, subject to the ranks' capacities; return ranks [n] int32.

    While a rank exceeds its capacity, one unit moves away along the cheapest chain of moves over other ranks
    (successive shortest paths, an exact algorithm). `costs` is float64 [n, N]. `start` [n] is a cheapest rank
    of each unit, at which it stays if possible. `max_units` [N] are the capacities. Raises ValueError if the
    total capacity is less than n.
    """
    num_units, num_ranks = costs.shape
    if sum(max_units) < num_units:
        raise ValueError(f"{num_units} units are too many: the ranks take at most {sum(max_units)}")
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


# A change of shares must make an epoch at least 5 % faster, because epoch times vary by about as much.
_MIN_IMPROVEMENT = 0.95


@dataclass(frozen=True, slots=True)
class MeasuredEpoch:
    seconds: float
    """Duration in seconds, at rank 0."""
    speeds: tuple[float | None, ...]
    """Units per second in the slowest stage of each rank, [N], without waits for other ranks; None for ranks
    without units.
    """


def speed_weighted_shares(epochs: Sequence[MeasuredEpoch], num_ranks: int, lag: int = 1) -> tuple[float, ...]:
    """Return the ranks' shares of a step, with sum 1, for the epoch that is `lag` epochs after the last one.

    All shares are equal at first. After each epoch except the first, which includes compilation, the shares
    are changed so that all ranks would take the same time, if this makes the slowest rank more than 5 %
    faster. If an epoch with changed shares was not faster than the epoch before, the bottleneck is elsewhere:
    the previous shares are restored and kept. A change takes effect after `lag` epochs; epochs in between are
    ignored.
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
