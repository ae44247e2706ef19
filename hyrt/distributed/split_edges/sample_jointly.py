"""Factory of the sampler for partitioned topology."""

from __future__ import annotations

from collections.abc import Callable

from hyrt.config import Config
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.sharing.possible_strategies import why_impossible
from hyrt.distributed.split_edges.asked_hops import AskedHops
from hyrt.distributed.split_edges.joint_sampler import JointSampler
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.machine.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.neighbor_settings import NeighborSettings
from hyrt.training.setup import PreparedRun


def sample_jointly(
    config: Config,
    graph: Graph,
    own: OwnRows,
    ranks: JoinedRanks,
    prepared: PreparedRun,
    own_units: Callable[[int, Ids], list[Ids]],
) -> JointSampler:
    """Create a sampler that requests neighbours from other ranks.

    Parameters
    ----------
    config
        All settings.
    graph
        The edges into this rank's vertices, with the degrees of all vertices.
    own
        Owners of all vertices.
    ranks
        All ranks; each rank must call it at the same time.
    prepared
        Sampler over the local edges.
    own_units
        Returns this rank's units of a step, per time step.

    Raises
    ------
    ConfigError
        If the strategy, the sampler or the cache needs all edges.
    """
    sampler = config.sampler
    if problem := why_impossible(config, config.distributed.strategy, edges_are_split=True):
        raise ConfigError(problem)
    if not isinstance(sampler, NeighborSettings) or sampler.draws_on_device:
        raise ConfigError(
            "parts made with --topology split require the neighbor sampler on the host: partition with "
            "--topology replicated, or set sampler.kind=neighbor and sampler.on_device=false"
        )
    if config.distributed.cache is not None:
        raise ConfigError(
            "distributed.cache needs the full topology on every rank, but these parts were made with "
            "--topology split: remove it, or partition with --topology replicated"
        )
    hops = AskedHops(graph.topology, own.homes, ranks.group("edges"), config.fanouts, config.seed)
    return JointSampler(
        prepared.sampler, hops, own_units, Workers(1, "hyrt.edges"), in_flight=config.runtime.depth
    )
