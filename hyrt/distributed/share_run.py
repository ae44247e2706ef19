"""From settings and a part of the rows to a rank's part of a run."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hyrt.config import Config
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.own_units import OwnUnits
from hyrt.distributed.rows.distributed_rows import DistributedRows
from hyrt.distributed.rows.distributed_sparse_rows import DistributedSparseRows
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.scores_by_home import ScoresByHome
from hyrt.distributed.strategies.registry import strategy
from hyrt.distributed.sum_over_ranks import SumOverRanks
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import FetchedRows, SparseFeatures
from hyrt.nn.model import GNN
from hyrt.nn.overridden import is_newer
from hyrt.objective import Objective
from hyrt.training.given.shared_run import SharedRun


def graph_of_all_rows(graph: Graph, own: OwnRows, ranks: JoinedRanks) -> Graph:
    """The graph with all rows, those of other ranks by exchange in the load stage.

    Parameters
    ----------
    graph
        Topology, labels and splits.
    own
        The rows of this rank.
    ranks
        All ranks.
    """
    rows: FetchedRows
    if isinstance(own.rows, SparseFeatures):
        rows = DistributedSparseRows(own.rows, own.places, own.homes, ranks.rows)
    else:
        rows = DistributedRows(own.rows, own.places, own.homes, ranks.rows)
    return graph.with_features(rows)


def share_run(
    config: Config,
    graph: Graph,
    own: OwnRows,
    ranks: JoinedRanks,
    model: torch.nn.Module,
    objective: Objective,
    stop_signal: Callable[[], int] = lambda: 0,
) -> tuple[SharedRun, SumOverRanks]:
    """A rank's part of a run.

    Parameters
    ----------
    config
        All settings; `distributed` is of the ranks.
    graph
        Topology, labels and splits.
    own
        The rows of this rank.
    ranks
        All ranks.
    model, objective
        The model to train, and for what.
    stop_signal
        Gives the number of the signal that asks this rank to stop; 0 for none.

    Returns
    -------
    The part, and its reduction, which knows when all ranks stop.
    """
    full = config.evaluate.mode == "full"
    by_layers = full and isinstance(model, GNN) and not is_newer(type(model), "forward", "layer")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    reduction = SumOverRanks(ranks.gradients, parameters, objective.counts, stop_signal)
    scores = ScoresByHome(
        graph,
        own,
        ranks.control,
        memory_bytes=int(config.evaluate.memory_gib * 2**30),
        sampled=None if by_layers else [-1] * len(config.fanouts) if full else config.fanouts,
        batch_size=min(config.data.batch_size, 256) if full else config.data.batch_size,
        seed=config.seed,
        agree=reduction.agree_to_stop,
    )
    placed = strategy(config.distributed.strategy)
    shared = SharedRun(
        num_processes=ranks.size,
        reduction=reduction,
        own_units=OwnUnits(placed, own.homes, ranks.rank, ranks.size),
        scores=scores,
    )
    return shared, reduction
