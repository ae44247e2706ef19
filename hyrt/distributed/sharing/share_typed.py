"""A rank's part of a run on a typed graph, of which every rank has all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hyrt.config import Config
from hyrt.config.settings import DistributedConfig
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
from hyrt.training.given.shared_run import SharedRun
from hyrt.training.setup import PreparedRun

_STRATEGIES = ("home", "model-centric")


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
    for name in ("strategy", "shares", "cache", "wire"):
        value = getattr(given, name)
        is_default = value == DistributedConfig.model_fields[name].default
        if not is_default and (name != "strategy" or value not in _STRATEGIES):
            raise ConfigError(
                f"distributed.{name}={value} is of graphs in parts, and every rank has all of {graph.name}: "
                f"omit distributed.{name}"
            )
    if config.sampler.whole_graph:
        raise ConfigError(
            f"{graph.name}: the whole of a typed graph is trained in one process: omit --full-graph, or "
            "torchrun"
        )
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
