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
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.evaluation import FullGraphScorer, OwnerRankScorer
from hyrt.distributed.full_graph.gather_ops import RankGatherOps, is_additive
from hyrt.distributed.full_graph.halo_exchange import BroadcastExchange, HaloExchange, SparseHaloExchange
from hyrt.distributed.full_graph.local_edges import LocalEdges, SpmmTimingsHook
from hyrt.distributed.full_graph.rank_edges import PartEdges, RankGrid
from hyrt.distributed.gradient_allreduce import GradientAllReduce
from hyrt.distributed.monitoring import TraceMerger
from hyrt.distributed.rows.local_rows import LocalRows
from hyrt.distributed.setup.mini_batch import RankSetup
from hyrt.errors import ConfigError, UnsupportedModelError, join_names
from hyrt.fullgraph.plan import CACHE_DIVISOR, is_decomposable
from hyrt.graph.graph import Graph
from hyrt.nn.layer import Layer
from hyrt.nn.message_passing.model_checks import needs_loops
from hyrt.nn.model import GNN
from hyrt.pipeline.synchronize import Reduction, StepTotals
from hyrt.pipeline.work_items import RankSlice
from hyrt.runtime.hardware import num_local_ranks
from hyrt.sampling.full_graph import FullGraph
from hyrt.sampling.full_sampler import FullSampler
from hyrt.training.distributed_run import DistributedRunConfig
from hyrt.training.setup import PreparedRun


def set_up_full_graph(
    config: Config,
    graph: Graph,
    local_rows: LocalRows,
    ranks: DistributedContext,
    prepared: PreparedRun,
    stop_signal: Callable[[], int] = lambda: 0,
    *,
    has_partitioned_topology: bool = False,
) -> RankSetup:
    """Create a rank's part of full-graph training; all ranks must call this at the same time.

    `distributed.algorithm` and `distributed.replication` control the products. The `owners` of `local_rows`
    are blocks. The other arguments are those of `hyrt.distributed.setup.mini_batch.set_up_run`. Raises
    ConfigError if the algorithm does not support the model.
    """
    model, settings = prepared.model, config.distributed
    if not is_decomposable(model):
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
        _check_chunks(config, model, local_rows, grid)
    for number, layer in enumerate(model.layers, 1):
        assert isinstance(layer, Layer)
        parts = layer.parts(multiply_first=False)
        if grid.replication > 1 and (parts is None or not is_additive(parts.gather)):
            raise ConfigError(
                f"distributed.algorithm={settings.algorithm} adds partial sums up, and layer {number} "
                f"({type(layer).__name__}) does not gather by sums: give distributed.algorithm=1d"
            )
    local_edges = _local_edges(config, graph, local_rows, ranks, grid)
    full_graph = _full_graph(graph, local_edges, ranks, loops=loops)
    sampler = prepared.sampler
    assert isinstance(sampler, FullSampler)
    is_local = local_rows.owners[prepared.targets] == grid.row
    prepared.sampler = sampler.for_part(
        full_graph, is_local, local_rows.local_ids[prepared.targets[is_local]]
    )
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = GradientAllReduce(ranks.gradients, parameters, prepared.objective.counts, stop_signal)
    fallback = OwnerRankScorer(
        graph,
        replace(local_rows, owners=local_rows.owners.astype(np.int64) * grid.replication),
        ranks.control,
        memory_bytes=int(config.evaluate.memory_gib * 2**30),
        fanouts=None if config.evaluate.mode == "full" else config.fanouts,
        batch_size=config.data.batch_size,
        seed=config.seed,
        agree=total.agree_to_stop,
        has_partitioned_topology=has_partitioned_topology,
    )
    shared = DistributedRunConfig(
        # A step has one unit, and every rank trains its rows of the unit.
        part=RankSlice(num_processes=ranks.size),
        reduction=total if grid.column == 0 else cast(Reduction, _ReplicaReduction(total)),
        in_chunks=in_chunks,
        traces=TraceMerger(ranks.control, ranks.failure_reports),
        scores=FullGraphScorer(grid, local_rows, ranks.control, fallback, total.agree_to_stop)
        if _can_score(config, ranks)
        else fallback,
    )
    hooks = [SpmmTimingsHook(local_edges, ranks.control)]
    return RankSetup(graph.with_features(local_rows.rows), shared, total, None, None, hooks)


def _can_score(config: Config, ranks: DistributedContext) -> bool:
    """Agree whether the devices of all ranks compute scores, because a forward pass needs all ranks."""
    backends = [find_device(request.name)[0] for request in config.training_requests]
    can_score = len(backends) == 1 and issubclass(backends[0], ScoresVertices)
    return all(ranks.control.exchange_counts([int(can_score)] * ranks.size, "control"))


def _requests_chunks(config: Config) -> bool:
    """Return whether a rank's settings request chunks, or its devices only support training in chunks."""
    kinds = {request.name.partition(":")[0] for request in config.training_requests}
    return config.fullgraph.uses_chunks or len(config.training_requests) > 1 or kinds != {"cpu"}


def _check_chunks(config: Config, model: GNN, local_rows: LocalRows, grid: RankGrid) -> None:
    """Raise ConfigError if ranks cannot train the model or the partition in chunks."""
    reason = (
        f"with devices={join_names(config.devices)}" if _requests_chunks(config) else "as another rank does"
    )
    try:
        model.description()
    except UnsupportedModelError as error:
        raise ConfigError(
            f"{error} cannot be trained in chunks on several ranks ({reason}): set devices=cpu and remove "
            "fullgraph.chunks and fullgraph.device_memory"
        ) from error
    if not (local_rows.owners == grid.row).any():
        raise ConfigError(
            f"part {grid.row} has no vertices, so its rank has nothing to train in chunks: partition the "
            "graph into fewer parts"
        )


def _local_edges(
    config: Config, graph: Graph, local_rows: LocalRows, ranks: DistributedContext, grid: RankGrid
) -> LocalEdges:
    """Select the edges into this rank's rows, and set up the halo exchange."""
    oblivious = config.distributed.algorithm.endswith("oblivious")
    edges = PartEdges.select(grid, graph.topology, local_rows.owners, oblivious=oblivious)
    column = [row * grid.replication + grid.column for row in range(grid.num_blocks)]
    # Group of the propagation thread: see `hyrt.distributed.context.DistributedContext`.
    products = ranks.group(f"products of column {grid.column}", column)
    exchange: HaloExchange = (
        BroadcastExchange(edges, products) if oblivious else SparseHaloExchange(edges, products)
    )
    replicas = None
    if grid.replication > 1:
        members = [grid.row * grid.replication + column for column in range(grid.replication)]
        replicas = ranks.group(f"replicas of block {grid.row}", members)
    return LocalEdges(edges, exchange, replicas)


def _full_graph(graph: Graph, spread: LocalEdges, ranks: DistributedContext, *, loops: bool) -> FullGraph:
    """Create the view of the graph that a rank's trainer treats as the whole graph."""
    edges = spread.edges
    memory = psutil.virtual_memory().total // CACHE_DIVISOR // num_local_ranks()
    persistent_bytes = min(ranks.control.exchange_counts([memory] * ranks.size, "control"))
    # Columns partition the edges of a block, so each edge is counted at one rank.
    num_edges = sum(ranks.control.exchange_counts([edges.topology.num_edges] * ranks.size, "control"))
    gatherings = RankGatherOps(spread, graph.num_vertices, num_edges, persistent_bytes, loops)
    return FullGraph(edges.topology, edges.vertices[: edges.num_local], gatherings)


@dataclass(frozen=True, slots=True)
class _ReplicaReduction:
    """Reduction at a replica that does not represent its block: its totals are counted at another rank."""

    reduction: GradientAllReduce

    def __call__(self, totals: StepTotals) -> StepTotals:
        return self.reduction(
            StepTotals(loss_sum=0.0, counts={}, normalizer=0.0, gradients=(), num_edges=totals.num_edges)
        )
