"""Setup of a rank's part of a run: mini-batches on a partitioned or replicated graph, or a full graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import psutil
import torch

from hyrt.config import Config
from hyrt.config.compatibility import check_compatibility, distributed_settings_refusal, list_features
from hyrt.config.run_settings import MEASURED
from hyrt.device.capabilities import ScoresVertices
from hyrt.device.discovery import find_device
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.distributed_rows import WireRoundingNotice
from hyrt.distributed.evaluation import FullGraphScorer, OwnerRankScorer
from hyrt.distributed.feature_parallel import FeatureParallelInput, feature_parallel_weight, gather_columns
from hyrt.distributed.gather_ops import RankGatherOps, is_additive
from hyrt.distributed.gradient_allreduce import (
    GradientAllReduce,
    GradientBuckets,
    SparseGradientAllReduce,
    build_buckets,
)
from hyrt.distributed.halo_exchange import BroadcastExchange, HaloExchange, SparseHaloExchange
from hyrt.distributed.local_edges import LocalEdges, SpmmTimingsHook
from hyrt.distributed.local_rows import LocalRows, fill_cache
from hyrt.distributed.model_migration import MigratingModelInputs, ModelMigration
from hyrt.distributed.monitoring import AdaptiveTimeSteps, RankSpeeds, TraceMerger
from hyrt.distributed.rank_grid import PartEdges, RankGrid
from hyrt.distributed.sampling import (
    AllRankBatches,
    StepPlacement,
    build_distributed_sampler,
    build_placement,
)
from hyrt.distributed.strategies.model_centric import ModelCentricStrategy
from hyrt.distributed.strategies.p3 import column_owners
from hyrt.errors import ConfigError, UnsupportedModelError, join_names
from hyrt.formatting import pluralize, short_repr
from hyrt.fullgraph.plan import CACHE_DIVISOR, is_decomposable
from hyrt.graph.graph import Graph
from hyrt.inference.evaluate import computes_by_layers
from hyrt.nn.hetero.inputs import find_embeddings
from hyrt.nn.layer import Layer, get_model_inputs
from hyrt.nn.model import GNN
from hyrt.nn.model_checks import needs_loops
from hyrt.pipeline.synchronize import Reduction, StepTotals, no_handoff
from hyrt.pipeline.work_items import RankSlice
from hyrt.runtime.hardware import available_cores, num_local_ranks
from hyrt.runtime.workers import Workers
from hyrt.sampling.full_sampler import FullSampler
from hyrt.sampling.minibatch import FullGraph
from hyrt.sampling.settings.neighbor_settings import NeighborSettings
from hyrt.telemetry.hooks import Hook
from hyrt.training.build_run import DistributedRunConfig
from hyrt.training.checkpoint import Checkpoint
from hyrt.training.setup import PreparedRun, build_sampler


def build_feature_parallel_input(
    config: Config,
    graph: Graph,
    local_rows: LocalRows,
    ranks: DistributedContext,
    prepared: PreparedRun,
    parameters: Sequence[torch.Tensor],
    placed: StepPlacement,
) -> FeatureParallelInput:
    """Create the feature-parallel inputs of strategy p3; all ranks must call this at the same time.

    Raises ConfigError if the model's first layer does not support feature parallelism.
    """
    weight = feature_parallel_weight(prepared.model)
    aggregation = get_model_inputs(prepared.model).aggregation
    owners = column_owners(local_rows.rows.width, ranks.size, config.seed)
    with Workers(available_cores(), "hyrt.columns") as workers:
        matrix = gather_columns(local_rows, owners, ranks.rows, workers)
    return FeatureParallelInput(
        matrix,
        np.flatnonzero(owners == ranks.rank),
        local_rows.rows.width,
        aggregation,
        next(number for number, parameter in enumerate(parameters) if parameter is weight),
        parameters,
        _all_rank_batches(config, graph, prepared, placed, in_place=aggregation is not None),
        ranks.rows,
    )


def build_migrating_inputs(
    config: Config,
    graph: Graph,
    local_rows: LocalRows,
    ranks: DistributedContext,
    prepared: PreparedRun,
    parameters: Sequence[torch.Tensor],
    placed: StepPlacement,
) -> MigratingModelInputs:
    """Create the inputs of strategy naive-migration, which models collect as they move from rank to rank."""
    aggregation = get_model_inputs(prepared.model).aggregation
    if aggregation is not None and aggregation.reduce == "max":
        aggregation = None
    return MigratingModelInputs(
        local_rows,
        aggregation,
        2 * sum(parameter.nbytes for parameter in parameters),
        _all_rank_batches(config, graph, prepared, placed, in_place=False),
        ranks.rows,
    )


def _all_rank_batches(
    config: Config, graph: Graph, prepared: PreparedRun, placed: StepPlacement, *, in_place: bool
) -> AllRankBatches:
    sampler = build_sampler(config, graph, prepared.targets, prepared.objective)
    return AllRankBatches(sampler, placed.units_by_rank, in_place=in_place)


@dataclass(frozen=True, slots=True)
class RankSetup:
    """Components of a rank's session, such as its graph, its reduction and its hooks."""

    graph: Graph
    """Graph with the feature rows that the trainers use."""
    shared: DistributedRunConfig
    reduction: GradientAllReduce
    """All-reduce of gradients, in which the ranks also agree on when to stop."""
    time_steps: AdaptiveTimeSteps | None
    """Hook that adapts the number of time steps; None for strategies with one time step."""
    speeds: RankSpeeds | None
    """Hook that measures the ranks' speeds; None unless steps are divided by speed."""
    hooks: Sequence[Hook]

    __repr__ = short_repr

    def resume_from(self, checkpoint: Checkpoint | None) -> None:
        """Restore adaptive state from the checkpoint of a resumed run."""
        if checkpoint is None:
            return
        epochs_s = checkpoint.state["totals"]["epochs_s"]
        if self.time_steps is not None:
            self.time_steps.restore(epochs_s)
        if self.speeds is not None:
            self.speeds.resume_after(len(epochs_s))


def set_up_run(
    config: Config,
    graph: Graph,
    local_rows: LocalRows,
    ranks: DistributedContext,
    prepared: PreparedRun,
    stop_signal: Callable[[], int] = lambda: 0,
    *,
    has_partitioned_topology: bool = False,
) -> RankSetup:
    """Create a rank's part of a run.

    `stop_signal` returns the number of the signal that this rank has received to stop, or 0. With
    `has_partitioned_topology`, the graph has only the edges into this rank's vertices, but global in-degrees
    (`hyrt.distributed.sampling`). Raises ConfigError if partitioned topology does not support the strategy or
    the sampler, or the strategy does not support the model.
    """
    model = prepared.model
    full, by_layers = config.evaluate.mode == "full", computes_by_layers(config, model)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = build_buckets(parameters)
    # A small model has one bucket, whose gradients are reduced after the backward pass.
    buckets = GradientBuckets(ranks.group("buckets"), parameters, groups) if len(groups) > 1 else None
    reduction = GradientAllReduce(
        ranks.gradients, parameters, prepared.objective.counts, stop_signal, buckets
    )
    scores = OwnerRankScorer(
        graph,
        local_rows,
        ranks.control,
        memory_bytes=int(config.evaluate.memory_gib * 2**30),
        fanouts=None if by_layers else [-1] * len(config.fanouts) if full else config.fanouts,
        batch_size=min(config.data.batch_size, 256) if full else config.data.batch_size,
        seed=config.seed,
        agree=reduction.agree_to_stop,
        has_partitioned_topology=has_partitioned_topology,
    )
    time_steps = speeds = None
    steps_per_epoch, overlapped = prepared.sampler.steps_per_epoch(), config.runtime.pipelined
    ahead = config.runtime.max_in_flight_steps if overlapped else 1
    if config.distributed.strategy == "hopgnn":
        time_steps = AdaptiveTimeSteps(
            ranks.control, steps_per_epoch, steps_ahead=ahead, fixed=config.distributed.time_steps
        )
    if config.distributed.shares == MEASURED:
        speeds = RankSpeeds(ranks.control, steps_per_epoch, ahead, overlapped=overlapped)
    placed = build_placement(
        config,
        graph,
        local_rows,
        ranks,
        prepared,
        time_steps,
        speeds,
        has_partitioned_topology=has_partitioned_topology,
    )
    local_units, end = placed.local_units, _do_nothing
    if has_partitioned_topology:
        distributed_sampler = build_distributed_sampler(
            config, graph, local_rows, ranks, prepared, placed.local_units
        )
        prepared.sampler, local_units, end = (
            distributed_sampler,
            distributed_sampler.local_units,
            distributed_sampler.end,
        )
    trained, step_reduction = prepared.graph, cast(Reduction, reduction)
    if config.distributed.strategy == "p3":
        parallel_input = build_feature_parallel_input(
            config, graph, local_rows, ranks, prepared, parameters, placed
        )
        trained, step_reduction = (
            graph.with_features(parallel_input),
            parallel_input.wrap_reduction(reduction),
        )
    elif config.distributed.strategy == "naive-migration":
        migrating_inputs = build_migrating_inputs(
            config, graph, local_rows, ranks, prepared, parameters, placed
        )
        trained = graph.with_features(migrating_inputs)
    # With these strategies, a gradient is not final when the backward pass has computed it.
    adds_later = config.distributed.strategy in ("hopgnn", "p3")
    shared = DistributedRunConfig(
        on_gradient=None if buckets is None or adds_later else buckets.add_gradient,
        part=RankSlice(
            num_processes=ranks.size,
            local_units=local_units,
            end=end,
            max_time_steps=1 if time_steps is None else ranks.size,
            fetches_each_time=time_steps is not None and not config.distributed.pre_gather,
        ),
        reduction=step_reduction,
        traces=TraceMerger(ranks.control, ranks.failure_reports),
        pass_on=no_handoff
        if time_steps is None
        else ModelMigration(ranks.gradients, parameters, placed.move),
        scores=scores,
    )
    hooks: list[Hook] = [hook for hook in (time_steps, speeds) if hook is not None]
    are_rows_sent = len(local_rows.same_host_rows) < ranks.size - 1
    if config.distributed.comm_dtype != "float32" and are_rows_sent:
        hooks.append(WireRoundingNotice(config.distributed.comm_dtype))
    if config.distributed.cache is not None and are_rows_sent:
        hooks.append(fill_cache(config, graph, local_rows, ranks, prepared, placed.strategy(0)))
    return RankSetup(trained, shared, reduction, time_steps, speeds, hooks)


def _do_nothing() -> None:
    """Do nothing, because no thread waits for neighbours."""


def convert_to_one_step(config: Config, graph: Graph) -> tuple[Config, str]:
    """Convert full-graph settings to mini-batch steps that can be divided among ranks.

    A full-graph step equals a mini-batch step of all targets with all their neighbours. Each rank trains a
    part of the targets and reads their neighbourhoods. Where the neighbourhoods of several ranks overlap,
    each of these ranks computes the shared vertices. Return the settings and a notice for the user.
    """
    count = len(graph.split("train", config.data.split))
    sampler = NeighborSettings(fanout=[-1] * config.model.layers)
    data = config.data.model_copy(update={"batch_size": max(1, count)})
    notice = (
        f"the full graph: one step trains all {pluralize(count, 'target')} with all their neighbours, "
        "divided among the ranks"
    )
    return config.model_copy(update={"sampler": sampler, "data": data}), notice


def set_up_hetero(
    config: Config,
    graph: Graph,
    ranks: DistributedContext,
    prepared: PreparedRun,
    stop_signal: Callable[[], int] = lambda: 0,
) -> RankSetup:
    """Create a rank's part of a run on a heterogeneous graph: an equal part of every step's targets.

    No feature rows are exchanged, since each rank opens the whole dataset. Gradients are all-reduced; for
    embedding tables, only the gradients of rows that the step has read. Every rank evaluates independently.
    `stop_signal` is as in `set_up_run`. Raises ConfigError if a setting applies to partitioned graphs only.
    """
    features = list_features(config, graph)
    if config.distributed.strategy == "model-centric":
        del features["strategy"]  # The default, home, places targets in the same way.
    refusal = distributed_settings_refusal(f"{graph.name}, which every rank opens as a whole,")
    check_compatibility([refusal], features)
    assert not config.sampler.is_full_graph, "see convert_to_one_step"
    model = prepared.model
    reduction = GradientAllReduce(
        ranks.gradients,
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        prepared.objective.counts,
        stop_signal,
        rows=SparseGradientAllReduce(ranks.gradients, find_embeddings(model)),
    )
    owners = np.zeros(graph.num_vertices if graph.links is None else len(graph.links.split.train), np.int8)
    placed = StepPlacement(lambda step: ModelCentricStrategy(), owners, ranks.rank, ranks.size)
    shared = DistributedRunConfig(
        part=RankSlice(num_processes=ranks.size, local_units=placed.local_units),
        reduction=reduction,
        traces=TraceMerger(ranks.control, ranks.failure_reports),
    )
    return RankSetup(graph, shared, reduction, None, None, [])


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

    `distributed.algorithm` and `distributed.replication` control the distributed products. The `owners` of
    `local_rows` are blocks. The other arguments are as in `set_up_run`. Raises ConfigError if the algorithm
    does not support the model.
    """
    model, settings = prepared.model, config.distributed
    if not is_decomposable(model):
        raise ConfigError(
            f"{type(model).__name__} computes the whole graph at once and cannot be distributed over "
            "ranks: use a hyrt.nn model, or remove --full-graph"
        )
    grid = RankGrid(ranks.size, settings.num_replicas, ranks.rank)
    chunks_requested = any(
        ranks.control.exchange_counts([int(_requests_chunks(config))] * ranks.size, "control")
    )
    # For these models, the devices loop over the edges themselves once all rows have been received.
    loops = chunks_requested and needs_loops(model)
    in_chunks = chunks_requested and not loops
    if in_chunks:
        _check_chunks(config, model, local_rows, grid)
    for number, layer in enumerate(model.layers, 1):
        assert isinstance(layer, Layer)
        parts = layer.parts(multiply_first=False)
        if grid.replication > 1 and (parts is None or not is_additive(parts.gather)):
            raise ConfigError(
                f"distributed.algorithm={settings.algorithm} requires layers that aggregate by sums, but "
                f"layer {number} ({type(layer).__name__}) does not: set distributed.algorithm=1d"
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
        # A step has a single unit, of which every rank trains its rows.
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
    """Agree on whether the devices of all ranks compute scores, since a forward pass needs all ranks."""
    backends = [find_device(request.name)[0] for request in config.training_requests]
    can_score = len(backends) == 1 and issubclass(backends[0], ScoresVertices)
    return all(ranks.control.exchange_counts([int(can_score)] * ranks.size, "control"))


def _requests_chunks(config: Config) -> bool:
    """Return whether a rank's settings request chunks, or its devices support training only in chunks."""
    kinds = {request.name.partition(":")[0] for request in config.training_requests}
    return config.fullgraph.uses_chunks or len(config.training_requests) > 1 or kinds != {"cpu"}


def _check_chunks(config: Config, model: GNN, local_rows: LocalRows, grid: RankGrid) -> None:
    """Raise ConfigError if the ranks cannot train the model or the partition in chunks."""
    reason = (
        f"with devices={join_names(config.devices)}" if _requests_chunks(config) else "as on another rank"
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
    # Only the propagation thread uses this group: see `hyrt.distributed.context.DistributedContext`.
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
    """Create the view of the graph that a rank's trainer uses as if it were a whole graph."""
    edges = spread.edges
    memory = psutil.virtual_memory().total // CACHE_DIVISOR // num_local_ranks()
    persistent_bytes = min(ranks.control.exchange_counts([memory] * ranks.size, "control"))
    # Columns partition the edges of a block, so each edge is counted at one rank.
    num_edges = sum(ranks.control.exchange_counts([edges.topology.num_edges] * ranks.size, "control"))
    gatherings = RankGatherOps(spread, graph.num_vertices, num_edges, persistent_bytes, loops)
    return FullGraph(edges.topology, edges.vertices[: edges.num_local], gatherings)


@dataclass(frozen=True, slots=True)
class _ReplicaReduction:
    """Reduction at a replica that does not represent its block: another rank counts the totals."""

    reduction: GradientAllReduce

    def __call__(self, totals: StepTotals) -> StepTotals:
        return self.reduction(
            StepTotals(loss_sum=0.0, counts={}, normalizer=0.0, gradients=(), num_edges=totals.num_edges)
        )
