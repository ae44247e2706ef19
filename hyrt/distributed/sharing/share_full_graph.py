"""Setup of a rank's part of full-graph training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import psutil

from hyrt.config import Config
from hyrt.device.capabilities import ScoresVertices
from hyrt.device.discovery import find_device
from hyrt.distributed.full_graph.exchanges.exchange import Exchange
from hyrt.distributed.full_graph.exchanges.needed_rows import NeededRows
from hyrt.distributed.full_graph.exchanges.whole_blocks import WholeBlocks
from hyrt.distributed.full_graph.part_edges import PartEdges
from hyrt.distributed.full_graph.products_hook import ProductsHook
from hyrt.distributed.full_graph.rank_gatherings import RankGatherings, adds_up
from hyrt.distributed.full_graph.rank_grid import RankGrid
from hyrt.distributed.full_graph.scores_of_rows import ScoresOfRows
from hyrt.distributed.full_graph.spread_edges import SpreadEdges
from hyrt.distributed.gradients.sum_over_ranks import SumOverRanks
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.scores_by_home import ScoresByHome
from hyrt.distributed.sharing.share_run import RankPart
from hyrt.distributed.watch.joined_traces import JoinedTraces
from hyrt.errors import ConfigError, UnsupportedModel, listed
from hyrt.fullgraph.plan import KEPT_PART, can_take_apart
from hyrt.graph.graph import Graph
from hyrt.machine.cores import local_ranks
from hyrt.nn.layer import Layer
from hyrt.nn.model import GNN
from hyrt.nn.saga.checks.on_devices import needs_loops
from hyrt.pipeline.shares import StepPart
from hyrt.pipeline.synchronize import Reduction, StepTotals
from hyrt.sampling.full.full_sampler import FullSampler
from hyrt.sampling.full.whole_graph import WholeGraph
from hyrt.training.given.shared_run import SharedRun
from hyrt.training.setup import PreparedRun


def share_full_graph(
    config: Config,
    graph: Graph,
    own: OwnRows,
    ranks: JoinedRanks,
    prepared: PreparedRun,
    stop_signal: Callable[[], int] = lambda: 0,
    *,
    edges_are_split: bool = False,
) -> RankPart:
    """Create a rank's part of full-graph training; every rank must call it at the same time.

    Parameters
    ----------
    config
        All settings; `distributed.algorithm` and `distributed.replication` control the products.
    graph
        Topology, labels and splits.
    own
        Rows of this rank's block; its `homes` are blocks.
    ranks, prepared, stop_signal, edges_are_split
        Arguments of `hyrt.distributed.sharing.share_run.share_run`.

    Raises
    ------
    ConfigError
        If the algorithm does not support the model.
    """
    model, settings = prepared.model, config.distributed
    if not can_take_apart(model):
        raise ConfigError(
            f"{type(model).__name__} computes the whole graph at once and cannot be distributed over "
            "ranks: train a model of hyrt.nn with --full-graph, or remove --full-graph"
        )
    grid = RankGrid(ranks.size, settings.num_replicas, ranks.rank)
    chunks_requested = any(
        ranks.control.exchange_counts([int(_requests_chunks(config))] * ranks.size, "control")
    )
    # For such models, devices loop over the edges themselves after all rows have been received.
    loops = chunks_requested and needs_loops(model)
    in_chunks = chunks_requested and not loops
    if in_chunks:
        _check_chunks(config, model, own, grid)
    for number, layer in enumerate(model.layers, 1):
        assert isinstance(layer, Layer)
        parts = layer.parts(multiply_first=False)
        if grid.replication > 1 and (parts is None or not adds_up(parts.gather)):
            raise ConfigError(
                f"distributed.algorithm={settings.algorithm} adds partial sums up, and layer {number} "
                f"({type(layer).__name__}) does not gather by sums: give distributed.algorithm=1d"
            )
    local_edges = _local_edges(config, graph, own, ranks, grid)
    full_graph = _full_graph(graph, local_edges, ranks, loops=loops)
    sampler = prepared.sampler
    assert isinstance(sampler, FullSampler)
    is_local = own.homes[prepared.targets] == grid.row
    prepared.sampler = sampler.part(full_graph, is_local, own.places[prepared.targets[is_local]])
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = SumOverRanks(ranks.gradients, parameters, prepared.objective.counts, stop_signal)
    fallback = ScoresByHome(
        graph,
        replace(own, homes=own.homes.astype(np.int64) * grid.replication),
        ranks.control,
        memory_bytes=int(config.evaluate.memory_gib * 2**30),
        sampled=None if config.evaluate.mode == "full" else config.fanouts,
        batch_size=config.data.batch_size,
        seed=config.seed,
        agree=total.agree_to_stop,
        edges_are_split=edges_are_split,
    )
    shared = SharedRun(
        # A step has one unit, and every rank trains its rows of the unit.
        part=StepPart(num_processes=ranks.size),
        reduction=total if grid.column == 0 else cast(Reduction, _ReplicaReduction(total)),
        in_chunks=in_chunks,
        traces=JoinedTraces(ranks.control, ranks.last_words),
        scores=ScoresOfRows(grid, own, ranks.control, fallback, total.agree_to_stop)
        if _can_score(config, ranks)
        else fallback,
    )
    hooks = [ProductsHook(local_edges, ranks.control)]
    return RankPart(graph.with_features(own.rows), shared, total, None, None, hooks)


def _can_score(config: Config, ranks: JoinedRanks) -> bool:
    """Agree whether the devices of all ranks compute scores: a forward pass needs all ranks."""
    backends = [find_device(request.name)[0] for request in config.trained_on]
    can_score = len(backends) == 1 and issubclass(backends[0], ScoresVertices)
    return all(ranks.control.exchange_counts([int(can_score)] * ranks.size, "control"))


def _requests_chunks(config: Config) -> bool:
    """Return whether a rank's settings request chunks, or its devices only support training in chunks."""
    kinds = {request.name.partition(":")[0] for request in config.trained_on}
    return config.fullgraph.asks_for_chunks or len(config.trained_on) > 1 or kinds != {"cpu"}


def _check_chunks(config: Config, model: GNN, local_rows: OwnRows, grid: RankGrid) -> None:
    """Raise ConfigError if ranks cannot train the model or the partition in chunks."""
    reason = f"with devices={listed(config.devices)}" if _requests_chunks(config) else "as another rank does"
    try:
        model.description()
    except UnsupportedModel as error:
        raise ConfigError(
            f"{error} cannot be trained in chunks on several ranks ({reason}): set devices=cpu and remove "
            "fullgraph.chunks and fullgraph.device_memory"
        ) from error
    if not (local_rows.homes == grid.row).any():
        raise ConfigError(
            f"part {grid.row} has no vertices, so its rank has nothing to train in chunks: partition the "
            "graph into fewer parts"
        )


def _local_edges(
    config: Config, graph: Graph, local_rows: OwnRows, ranks: JoinedRanks, grid: RankGrid
) -> SpreadEdges:
    """Select the edges into this rank's rows, and set up the halo exchange."""
    oblivious = config.distributed.algorithm.endswith("oblivious")
    edges = PartEdges.of(grid, graph.topology, local_rows.homes, oblivious=oblivious)
    column = [row * grid.replication + grid.column for row in range(grid.num_blocks)]
    # Group of the propagation thread: see `hyrt.distributed.joined_ranks.JoinedRanks`.
    products = ranks.group(f"products of column {grid.column}", column)
    exchange: Exchange = WholeBlocks(edges, products) if oblivious else NeededRows(edges, products)
    replicas = None
    if grid.replication > 1:
        members = [grid.row * grid.replication + column for column in range(grid.replication)]
        replicas = ranks.group(f"replicas of block {grid.row}", members)
    return SpreadEdges(edges, exchange, replicas)


def _full_graph(graph: Graph, spread: SpreadEdges, ranks: JoinedRanks, *, loops: bool) -> WholeGraph:
    """Create the view of the graph that a rank's trainer treats as the whole graph."""
    edges = spread.edges
    memory = psutil.virtual_memory().total // KEPT_PART // local_ranks()
    persistent_bytes = min(ranks.control.exchange_counts([memory] * ranks.size, "control"))
    # Columns partition the edges of a block, so each edge is counted at one rank.
    num_edges = sum(ranks.control.exchange_counts([edges.topology.num_edges] * ranks.size, "control"))
    gatherings = RankGatherings(spread, graph.num_vertices, num_edges, persistent_bytes, loops)
    return WholeGraph(edges.topology, edges.vertices[: edges.num_own], gatherings)


@dataclass(frozen=True, slots=True)
class _ReplicaReduction:
    """Reduction at a replica that does not represent its block: its totals are counted at another rank."""

    reduction: SumOverRanks

    def __call__(self, own: StepTotals) -> StepTotals:
        return self.reduction(
            StepTotals(loss_sum=0.0, counts={}, normalizer=0.0, gradients=(), num_edges=own.num_edges)
        )
