"""Traffic of strategies that fetch the missing rows of each rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from hyrt.distributed.strategies.placement import Placement
from hyrt.distributed.strategies.strategy import InputBlock
from hyrt.distributed.strategies.traffic import Traffic, rows_from


def gathered_once(placement: Placement, homes: NDArray[Any], sampled: InputBlock) -> Traffic:
    """Count each rank's remote rows if they are fetched once per step (pre-gathering).

    Parameters
    ----------
    placement, homes, sampled
        Arguments of `hyrt.distributed.strategies.strategy.Strategy.traffic`.
    """
    traffic = Traffic.none(placement.num_ranks)
    rows = traffic.rows.copy()
    for rank in range(placement.num_ranks):
        positions = placement.of_rank(rank)
        if len(positions):
            rows[:, rank] = rows_from(_sources(sampled, positions), homes, rank, placement.num_ranks)
    return replace(traffic, rows=rows)


def gathered_each_time(placement: Placement, homes: NDArray[Any], sampled: InputBlock) -> Traffic:
    """Count each rank's remote rows if they are fetched again in each time step.

    Parameters
    ----------
    placement, homes, sampled
        Arguments of `hyrt.distributed.strategies.strategy.Strategy.traffic`.
    """
    traffic = Traffic.none(placement.num_ranks)
    rows = traffic.rows.copy()
    for rank in range(placement.num_ranks):
        for group in placement.groups_of(rank):
            if len(group):
                rows[:, rank] += rows_from(_sources(sampled, group), homes, rank, placement.num_ranks)
    return replace(traffic, rows=rows)


def _sources(sampled: InputBlock, positions: NDArray[Any]) -> NDArray[Any]:
    sources = sampled(positions).sources
    assert sources is not None
    return sources
