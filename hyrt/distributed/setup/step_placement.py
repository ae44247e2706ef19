"""Placement of each step's units on ranks and time steps, and sampling of the mini-batches of all ranks.

All ranks compute the same placement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.monitoring import RankSpeeds, TimeSteps
from hyrt.distributed.rows.local_rows import LocalRows
from hyrt.distributed.strategies.expected_rows import expected_remote_rows
from hyrt.distributed.strategies.home import HomeStrategy
from hyrt.distributed.strategies.hopgnn import HopGnnStrategy
from hyrt.distributed.strategies.local import LocalOrder
from hyrt.distributed.strategies.registry import create_strategy
from hyrt.distributed.strategies.strategy import Placement, Ranks, Seeds, Strategy
from hyrt.graph.graph import Graph
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import Sampler
from hyrt.sampling.settings.neighbor_settings import NeighborSettings
from hyrt.training.setup import PreparedRun


class AllRankBatches:
    """Sampler of the mini-batches of all ranks.

    `sampler` must be a separate one, because other threads may sample at the same time. `units_of_ranks`
    returns the units of each rank, for a step and all of its units. With `in_place`, blocks are read in
    place.
    """

    def __init__(
        self,
        sampler: Sampler,
        units_of_ranks: Callable[[int, Ids], Sequence[Ids]],
        *,
        in_place: bool,
    ) -> None:
        self._sampler = sampler
        self._units_of_ranks = units_of_ranks
        self._in_place = in_place

    def batches(self, step: int, workers: Workers) -> dict[int, MiniBatch]:
        """Sample the mini-batches of a step, by rank, without ranks that have no units.

        The caller releases the mini-batches.
        """
        return {
            rank: self._sampler.sample(step, units, workers, in_place=self._in_place)
            for rank, units in enumerate(self._units_of_ranks(step, self._sampler.units(step)))
            if len(units)
        }


class StepPlacement:
    """Placement of every step by a strategy.

    `strategy` returns the strategy of a step. `owners` [V] is the owner rank of each vertex; for links [M],
    the owner rank of each source. `expected_rows` computes the `remote_rows` of `Seeds` from units; None if
    they are unknown. `order` has the batches of a strategy that draws targets from each part; None for the
    batches of the sampler.
    """

    def __init__(
        self,
        strategy: Callable[[int], Strategy],
        owners: NDArray[Any],
        rank: int,
        size: int,
        expected_rows: Callable[[Ids], NDArray[np.float64]] | None = None,
        order: LocalOrder | None = None,
    ) -> None:
        self.strategy = strategy
        """Function that returns the strategy of a step."""
        self._owners = owners
        self._rank = rank
        self._size = size
        self._expected_rows = expected_rows
        self._order = order
        self._paths: dict[int, Ranks] = {}

    def local_units(self, step: int, units: Ids) -> list[Ids]:
        """Return the units of a step that this rank trains, per time step."""
        if self._order is not None:
            units = self._order.batch(step)
        placement = self._place(step, units)
        if placement.num_times > 1:
            self._paths[step] = placement.paths
        return [np.ascontiguousarray(units[group]) for group in placement.positions_by_time(self._rank)]

    def units_by_rank(self, step: int, units: Ids) -> list[Ids]:
        """Return the units of a step that each rank trains, for a strategy with one time step."""
        placement = self._place(step, units)
        return [np.ascontiguousarray(units[placement.positions_of_rank(rank)]) for rank in range(self._size)]

    def _place(self, step: int, units: Ids) -> Placement:
        expected = self._expected_rows
        return self.strategy(step).place(
            Seeds(
                owners=self._owners[units],
                num_ranks=self._size,
                remote_rows=None if expected is None else lambda: expected(units),
            )
        )

    def move(self, step: int, time: int) -> tuple[Ranks, Ranks]:
        """Return the rank of each model in a time step and in the next, [N] int32.

        Call this once per time step, in order.
        """
        paths = self._paths[step]
        if time + 2 == len(paths):
            del self._paths[step]
        return paths[time], paths[time + 1]


def build_placement(
    config: Config,
    graph: Graph,
    local_rows: LocalRows,
    ranks: DistributedContext,
    prepared: PreparedRun,
    time_steps: TimeSteps | None,
    speeds: RankSpeeds | None,
    *,
    has_partitioned_topology: bool,
) -> StepPlacement:
    """Create the placement of each step's units."""
    settings, rank, size, homes = config.distributed, ranks.rank, ranks.size, local_rows.owners
    if graph.links is not None:
        # A link is trained by the owner of its source; `find_link_problem` rejects strategies that place
        # vertices.
        homes = local_rows.owners[graph.links.split.train[:, 0]]
    if time_steps is not None:
        return StepPlacement(
            lambda step: HopGnnStrategy(settings.pre_gather, time_steps.num_times(step)),
            local_rows.owners,
            rank,
            size,
        )
    chosen = (
        HomeStrategy(shares=settings.numeric_shares)
        if settings.strategy == "home"
        else create_strategy(settings.strategy)
    )
    expected_rows = order = None
    if chosen.draws_locally:
        order = LocalOrder(prepared.targets, local_rows.owners, size, config.data.batch_size, config.seed)
    can_predict_rows = graph.links is None and not has_partitioned_topology
    if isinstance(config.sampler, NeighborSettings) and can_predict_rows:
        expected_rows = partial(
            expected_remote_rows,
            graph.topology,
            owners=local_rows.owners,
            num_ranks=size,
            fanout=config.fanouts[0],
        )
    if speeds is not None:

        def by_speed(step: int) -> HomeStrategy:
            return HomeStrategy(shares=speeds.shares_of(step))

        return StepPlacement(by_speed, homes, rank, size, expected_rows, order)
    return StepPlacement(lambda step: chosen, homes, rank, size, expected_rows, order)
