"""A rank's part of a run on a typed graph, of which every rank has all."""

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
    """The settings of full-graph training as those of steps that ranks can share.

    A step over the whole graph equals one of all targets with all of their neighbours: each rank has a piece
    of the targets, and reads what is around them. Vertices near targets of several ranks are computed by
    each of these.

    Returns
    -------
    Equal settings but for the sampler and the targets of a step, and what a user should know.
    """
    count = len(graph.split("train", config.data.split))
    sampler = NeighborSettings(fanout=[-1] * config.model.layers)
    data = config.data.model_copy(update={"batch_size": max(1, count)})
    said = (
        f"the full graph in one step of all {counted(count, 'target')} with all their neighbours: each rank "
        "trains a piece of the targets"
    )
    return config.model_copy(update={"sampler": sampler, "data": data}), said


def share_typed(
    config: Config,
    graph: Graph,
    ranks: JoinedRanks,
    prepared: PreparedRun,
    stop_signal: Callable[[], int] = lambda: 0,
) -> RankPart:
    """A rank's part of a run: an equal piece of every step's targets, as they are drawn.

    No rows travel, since each rank opens the whole dataset; gradients do, and of learned rows those that a
    step has read. Every rank evaluates alone.

    Parameters
    ----------
    config, graph
        All settings, and the graph.
    ranks
        All ranks.
    prepared
        The model, the objective and the sampler.
    stop_signal
        Gives the number of the signal that asks this rank to stop; 0 for none.

    Raises
    ------
    ConfigError
        If the settings ask for something that is of graphs in parts.
    """
    given = config.distributed
    for name in ("strategy", "shares", "cache", "wire", "share_rows"):
        value = getattr(given, name)
        is_default = value == DistributedConfig.model_fields[name].default
        if not is_default and (name != "strategy" or value not in _STRATEGIES):
            raise ConfigError(
                f"distributed.{name}={value} is for graphs in parts, but every rank has all of "
                f"{graph.name}: omit distributed.{name}"
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
    everywhere = np.zeros(
        graph.num_vertices if graph.links is None else len(graph.links.split.train), np.int8
    )
    placed = PlacedSteps(lambda step: ModelCentric(), everywhere, ranks.rank, ranks.size)
    shared = SharedRun(
        part=StepPart(num_processes=ranks.size, own_units=placed.own_units),
        reduction=reduction,
        traces=JoinedTraces(ranks.control, ranks.last_words),
    )
    return RankPart(graph, shared, reduction, None, None, [])
