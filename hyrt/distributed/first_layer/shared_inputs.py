"""Input rows for strategies whose ranks compute the first layer together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hyrt.config import Config
from hyrt.distributed.first_layer.column_rows import columns_of_all_rows
from hyrt.distributed.first_layer.divided_columns import DividedColumns
from hyrt.distributed.first_layer.divided_weight import divided_weight
from hyrt.distributed.first_layer.every_rank import EveryRank
from hyrt.distributed.first_layer.touring_models import TouringModels
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.sharing.placed_steps import PlacedSteps
from hyrt.distributed.strategies.p3 import column_owners
from hyrt.graph.graph import Graph
from hyrt.machine.cores import available_cores
from hyrt.machine.workers import Workers
from hyrt.nn.inputs import inputs_of
from hyrt.training.setup import PreparedRun, build_sampler


def divided_columns(
    config: Config,
    graph: Graph,
    own: OwnRows,
    ranks: JoinedRanks,
    prepared: PreparedRun,
    parameters: Sequence[torch.Tensor],
    placed: PlacedSteps,
) -> DividedColumns:
    """Create feature-parallel inputs for strategy p3; every rank must call it at the same time.

    Raises
    ------
    ConfigError
        If the model's first layer does not support feature parallelism.
    """
    weight = divided_weight(prepared.model)
    aggregation = inputs_of(prepared.model).aggregation
    owners = column_owners(own.rows.width, ranks.size, config.seed)
    with Workers(available_cores(), "hyrt.columns") as workers:
        matrix = columns_of_all_rows(own, owners, ranks.rows, workers)
    return DividedColumns(
        matrix,
        np.flatnonzero(owners == ranks.rank),
        own.rows.width,
        aggregation,
        next(number for number, parameter in enumerate(parameters) if parameter is weight),
        parameters,
        _all_rank_batches(config, graph, prepared, placed, in_place=aggregation is not None),
        ranks.rows,
    )


def touring_models(
    config: Config,
    graph: Graph,
    own: OwnRows,
    ranks: JoinedRanks,
    prepared: PreparedRun,
    parameters: Sequence[torch.Tensor],
    placed: PlacedSteps,
) -> TouringModels:
    """Create the inputs for strategy naive-migration, which models collect from rank to rank."""
    aggregation = inputs_of(prepared.model).aggregation
    if aggregation is not None and aggregation.reduce == "max":
        aggregation = None
    return TouringModels(
        own,
        aggregation,
        2 * sum(parameter.nbytes for parameter in parameters),
        _all_rank_batches(config, graph, prepared, placed, in_place=False),
        ranks.rows,
    )


def _all_rank_batches(
    config: Config, graph: Graph, prepared: PreparedRun, placed: PlacedSteps, *, in_place: bool
) -> EveryRank:
    sampler = build_sampler(config, graph, prepared.targets, prepared.objective)
    return EveryRank(sampler, placed.units_of_ranks, in_place=in_place)
