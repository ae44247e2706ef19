"""Setup of a rank's part of a run on a heterogeneous graph, which is replicated on every rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hyrt.config import Config
from hyrt.config.run_settings import DistributedConfig
from hyrt.distributed.gradients.rows_over_ranks import RowsOverRanks
from hyrt.distributed.gradients.sum_over_ranks import SumOverRanks
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.sharing.placed_steps import PlacedSteps
from hyrt.distributed.sharing.share_run import RankPart
from hyrt.distributed.strategies.model_centric import ModelCentric
from hyrt.distributed.watch.joined_traces import JoinedTraces
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.nn.typed.learned.learned_rows import tables_of
from hyrt.pipeline.shares import StepPart
from hyrt.quantities import counted
from hyrt.sampling.neighbor_settings import NeighborSettings
from hyrt.training.given.shared_run import SharedRun
from hyrt.training.setup import PreparedRun

_STRATEGIES = ("home", "model-centric")


def as_one_step(config: Config, graph: Graph) -> tuple[Config, str]:
    """Convert full-graph settings to mini-batch steps that can be divided among ranks.

    A full-graph step equals a mini-batch step of all targets with all their neighbours. Each rank trains a
    part of
    the targets and reads their neighbourhoods; vertices near targets of several ranks are computed by each of
    them.

    Returns
    -------
    Settings with a different sampler and batch size, and a notice for the user.
    """
    count = len(graph.split("train", config.data.split))
    sampler = NeighborSettings(fanout=[-1] * config.model.layers)
    data = config.data.model_copy(update={"batch_size": max(1, count)})
    notice = (
        f"the full graph in one step of all {counted(count, 'target')} with all their neighbours: each rank "
        "trains a piece of the targets"
    )
    return config.model_copy(update={"sampler": sampler, "data": data}), notice


def share_typed(
    config: Config,
    graph: Graph,
    ranks: JoinedRanks,
    prepared: PreparedRun,
    stop_signal: Callable[[], int] = lambda: 0,
) -> RankPart:
    """Create a rank's part of a run: an equal part of every step's targets, in sampling order.

    No feature rows are exchanged, since each rank opens the whole dataset. Gradients are all-reduced, and
    those of
    embedding tables only for rows that the step has read. Every rank evaluates independently.

    Parameters
    ----------
    config, graph
        All settings, and the graph.
    ranks
        All ranks.
    prepared
        Model, objective and sampler.
    stop_signal
        Returns the number of the signal that requests this rank to stop; 0 for none.

    Raises
    ------
    ConfigError
        If a setting applies to partitioned graphs only.
    """
    settings = config.distributed
    for name in ("strategy", "shares", "cache", "wire", "share_rows"):
        value = getattr(settings, name)
        is_default = value == DistributedConfig.model_fields[name].default
        if not is_default and (name != "strategy" or value not in _STRATEGIES):
            raise ConfigError(
                f"distributed.{name}={value} applies to partitioned graphs, but {graph.name} is "
                f"replicated on every rank: remove distributed.{name}"
            )
    assert not config.sampler.whole_graph, "see as_one_step"
    model = prepared.model
    reduction = SumOverRanks(
        ranks.gradients,
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        prepared.objective.counts,
        stop_signal,
        rows=RowsOverRanks(ranks.gradients, tables_of(model)),
    )
    owners = np.zeros(graph.num_vertices if graph.links is None else len(graph.links.split.train), np.int8)
    placed = PlacedSteps(lambda step: ModelCentric(), owners, ranks.rank, ranks.size)
    shared = SharedRun(
        part=StepPart(num_processes=ranks.size, own_units=placed.own_units),
        reduction=reduction,
        traces=JoinedTraces(ranks.control, ranks.last_words),
    )
    return RankPart(graph, shared, reduction, None, None, [])
