"""The traffic of strategies that fetch the rows each rank lacks once a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from hyrt.distributed.strategies.placement import Placement
from hyrt.distributed.strategies.strategy import InputBlock
from hyrt.distributed.strategies.traffic import Traffic, rows_from


def gathered_once(placement: Placement, homes: NDArray[Any], sampled: InputBlock) -> Traffic:
    """Each rank's remote rows, once for all that it trains in a step.

    Parameters
    ----------
    placement, homes, sampled
        The arguments of `hyrt.distributed.strategies.strategy.Strategy.traffic`.
    """
    traffic = Traffic.none(placement.num_ranks)
    rows = traffic.rows.copy()
    for rank in range(placement.num_ranks):
        mine = placement.of_rank(rank)
        if len(mine):
            rows[:, rank] = rows_from(_sources(sampled, mine), homes, rank, placement.num_ranks)
    return replace(traffic, rows=rows)


def gathered_each_time(placement: Placement, homes: NDArray[Any], sampled: InputBlock) -> Traffic:
    """Each rank's remote rows, anew in each time step.

    Parameters
    ----------
    placement, homes, sampled
        The arguments of `hyrt.distributed.strategies.strategy.Strategy.traffic`.
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
