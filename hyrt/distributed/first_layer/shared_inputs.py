"""The input rows of strategies under which ranks compute first layers together."""

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
    """Input rows by columns, for strategy p3; every rank calls it at once.

    Raises
    ------
    ConfigError
        If the model's first layer cannot be divided.
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
        next(number for number, each in enumerate(parameters) if each is weight),
        parameters,
        _every_rank(config, graph, prepared, placed, in_place=aggregation is not None),
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
    """Input rows that models collect from rank to rank, for strategy naive-migration."""
    aggregation = inputs_of(prepared.model).aggregation
    if aggregation is not None and aggregation.reduce == "max":
        aggregation = None
    return TouringModels(
        own,
        aggregation,
        2 * sum(parameter.nbytes for parameter in parameters),
        _every_rank(config, graph, prepared, placed, in_place=False),
        ranks.rows,
    )


def _every_rank(
    config: Config, graph: Graph, prepared: PreparedRun, placed: PlacedSteps, *, in_place: bool
) -> EveryRank:
    sampler = build_sampler(config, graph, prepared.targets, prepared.objective)
    return EveryRank(sampler, placed.units_of_ranks, in_place=in_place)
