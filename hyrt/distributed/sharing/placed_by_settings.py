"""Placement of steps according to the settings."""

from __future__ import annotations

from functools import partial

from hyrt.config import Config
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.sharing.placed_steps import PlacedSteps
from hyrt.distributed.strategies.evening.expected_rows import expected_remote_rows
from hyrt.distributed.strategies.home import Home
from hyrt.distributed.strategies.hopgnn import HopGnn
from hyrt.distributed.strategies.local import LocalOrder
from hyrt.distributed.strategies.registry import strategy
from hyrt.distributed.time_steps import TimeSteps
from hyrt.distributed.watch.rank_speeds import RankSpeeds
from hyrt.graph.graph import Graph
from hyrt.sampling.neighbor_settings import NeighborSettings
from hyrt.training.setup import PreparedRun


def placed_steps(
    config: Config,
    graph: Graph,
    own: OwnRows,
    ranks: JoinedRanks,
    prepared: PreparedRun,
    time_steps: TimeSteps | None,
    speeds: RankSpeeds | None,
    *,
    edges_are_split: bool,
) -> PlacedSteps:
    """Create the placement of each step's units."""
    settings, rank, size, homes = config.distributed, ranks.rank, ranks.size, own.homes
    if graph.links is not None:
        # A link is trained by the owner of its source; `why_no_links` rejects strategies that place vertices.
        homes = own.homes[graph.links.split.train[:, 0]]
    if time_steps is not None:
        return PlacedSteps(
            lambda step: HopGnn(settings.pre_gather, time_steps.of(step)), own.homes, rank, size
        )
    chosen = (
        Home(shares=settings.given_shares) if settings.strategy == "home" else strategy(settings.strategy)
    )
    expected_rows = order = None
    if chosen.draws_locally:
        order = LocalOrder(prepared.targets, own.homes, size, config.data.batch_size, config.seed)
    can_predict_rows = graph.links is None and not edges_are_split
    if isinstance(config.sampler, NeighborSettings) and can_predict_rows:
        expected_rows = partial(
            expected_remote_rows, graph.topology, homes=own.homes, num_ranks=size, fanout=config.fanouts[0]
        )
    if speeds is not None:

        def by_speed(step: int) -> Home:
            return Home(shares=speeds.shares_of(step))

        return PlacedSteps(by_speed, homes, rank, size, expected_rows, order)
    return PlacedSteps(lambda step: chosen, homes, rank, size, expected_rows, order)
