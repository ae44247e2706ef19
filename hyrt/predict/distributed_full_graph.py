"""Prediction of distributed full-graph training with each algorithm."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hyrt_perfmodel.distributed_epoch import AlgorithmEpoch, FullGraphWork, algorithm_epoch, fastest_algorithm
from hyrt_perfmodel.measured_costs import FullGraphRates, sparse_seconds
from hyrt_perfmodel.network import Network
from hyrt_perfmodel.platform import Platform
from hyrt_perfmodel.prediction.predict import ASSUMED_ERROR, predict
from hyrt_perfmodel.workload import FullGraphStep, TrainingWorkload
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.distributed.gather_ops import ExchangeWidths
from hyrt.distributed.rank_grid import MAX_ROUNDS
from hyrt.distributed.strategies.registry import find_rank_problem
from hyrt.errors import ConfigError
from hyrt.formatting import format_bytes, pluralize, short_repr
from hyrt.fullgraph.plan import CACHE_DIVISOR, plan_full_graph
from hyrt.graph.graph import Graph
from hyrt.graph.partition.block_volumes import count_block_volumes, merge_parts
from hyrt.graph.partition.manifest import GRAPH, is_partition, read_manifest
from hyrt.graph.partition.read_parts import PART_IDS_KEY, PartFiles
from hyrt.graph.partition.registry import get_partition_method
from hyrt.graph.row_source import SparseSource
from hyrt.graph.source import open_graph
from hyrt.graph.topology import Topology
from hyrt.predict.chunk_prediction import ChunkPrediction, chunk_prediction_gap, predict_chunks
from hyrt.predict.chunked_work import ChunkedWork
from hyrt.predict.counted_traffic import read_partition_map
from hyrt.predict.dataset_sizes import FullGraphSizes, graph_sizes
from hyrt.predict.step_dry_run import StepDryRun, meta_model, model_for_widths


@dataclass(frozen=True, slots=True)
class RankChunks:
    """Epoch of all ranks that train in chunks, predicted as if one machine computed it."""

    prediction: ChunkPrediction
    """Prediction for that machine, which has the intervals of all ranks."""
    edges_s: float
    """Time in seconds of gathers along edges and their copies."""
    rows_s: float
    """Time in seconds of all other work."""
    columns: tuple[int, ...] | None
    """Width of the rows and gradients that each layer sends per epoch; None if it is as without chunks."""


def predict_rank_chunks(
    platform: Platform, work: TrainingWorkload, config: Config, ranks: int, threads: int
) -> RankChunks | None:
    """Predict the computation of equal ranks, or return None if they do not train in chunks.

    Each rank divides its vertices into P intervals, and remote rows into intervals of at most this length, so
    the chunks are those of one machine with P intervals per rank. `platform` contains only the trainers of
    one rank; `work` and `threads` are those of all ranks. Raises ConfigError if such ranks cannot be
    predicted.
    """
    settings, device_kinds = (
        config.fullgraph,
        {chunks_per_rank.name.partition(":")[0] for chunks_per_rank in config.training_requests},
    )
    if not (settings.uses_chunks or len(config.training_requests) > 1 or device_kinds != {"cpu"}):
        return None
    if reason := chunk_prediction_gap(platform, work, config):
        raise ConfigError(reason)
    chunks_per_rank = settings.chunks
    if not chunks_per_rank:
        # If the whole graph fits on one machine, each rank has one interval.
        single = predict_chunks(platform, work, config)
        chunks_per_rank = 1 if single is None else math.ceil(single.intervals / ranks)
    runtime = config.runtime.model_copy(update={"train_threads": threads})
    cut = settings.model_copy(update={"chunks": ranks * chunks_per_rank})
    config = config.model_copy(update={"fullgraph": cut, "runtime": runtime})
    prediction = predict_chunks(platform, work, config)
    if prediction is None:
        raise ConfigError(
            "even the smallest chunks do not fit in device memory: lower model.hidden, or raise "
            "fullgraph.device_memory"
        )
    gather_fraction, computing_s = prediction.gather_fraction, prediction.epoch_s - prediction.synchronize_s
    described = ChunkedWork.from_config(work, config, config.training_requests[0].name)
    # Rows are exchanged before they are multiplied, and the features are exchanged only once.
    columns = (
        None
        if described is None
        else tuple(chunks_per_rank.gather_width for chunks_per_rank in described.layers[1:])
    )
    return RankChunks(prediction, gather_fraction * computing_s, (1 - gather_fraction) * computing_s, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFullGraphStep:
    """Full-graph step as the ranks plan it: the first layer's gather is cached if it fits."""

    platform: Platform
    rates: FullGraphRates
    """Rates that were measured on the machine."""
    training: TrainingWorkload
    full_step: FullGraphStep
    """Work of a step over all rows."""
    row: FullGraphStep
    """Work of a step over a single row without edges, which determines the fixed cost."""
    chunk_rows: int
    """Number of rows that a thread computes at a time."""

    __repr__ = short_repr

    def seconds(self, threads: int) -> tuple[float, float, float]:
        """Return the seconds of gathers and of row operations, and the fixed core-seconds of a rank."""
        full_step, row, rates = self.full_step, self.row, self.rates
        calls_s = rates.call_s * rates.threads
        rows_s = rates.rows_s(full_step, threads) - row.calls * calls_s / threads
        rows_s += self._sparse_s(
            full_step.sparse_macs, full_step.sparse_weights - row.sparse_weights, threads
        )
        rank_s = row.calls * calls_s + self._sparse_s(0.0, row.sparse_weights, 1)
        return rates.reads_s(full_step.reads, threads, self.training.model), max(0.0, rows_s), rank_s

    def _sparse_s(self, macs: float, weights: float, threads: int) -> float:
        work, host = self.training.at(1.0), self.platform.host
        if work.sparse is None:
            return 0.0
        width = work.sparse.product_width
        if not host.sparse:
            return macs / host.macs_per_s
        return sparse_seconds(
            host.sparse,
            macs=macs,
            weights=max(0.0, weights),
            product_width=width,
            weight_bytes=work.features[0] * width * work.bytes_per_value,
            threads=threads,
        )


def shared_full_graph_step(
    config: Config, graph: Graph, platform: Platform, training: TrainingWorkload, *, cache_bytes: int
) -> SharedFullGraphStep | None:
    """Return a full-graph step on the CPU, or None if its cost was not measured.

    `cache_bytes` is the size of each rank's cache for the first layer's gather.
    """
    rates = platform.host.whole_graph
    is_host = all(trainer.is_host for trainer in platform.trainers(training.model))
    if rates is None or training.full_graph_step is None or not is_host:
        return None
    model = model_for_widths(config, graph.num_features, graph.num_outputs)
    plan = plan_full_graph(
        model,
        graph.num_vertices,
        graph.num_edges,
        is_sparse=isinstance(graph.features, SparseSource),
        memory_bytes=cache_bytes,
        is_distributed=True,
    )
    targets = graph.split("train", config.data.split)
    entries = graph_sizes(graph, targets).row_entries

    def step(vertices: int, edges: int, num_targets: int, target_edges: float) -> FullGraphStep:
        sizes = FullGraphSizes(
            vertices=vertices,
            edges=edges,
            targets=num_targets,
            target_edges=target_edges,
            scored=0,
            data_bytes={},
            row_entries=entries,
        )
        dry_run = StepDryRun(plan, sizes)
        dry_run.step()
        return FullGraphStep(
            arrays={},
            reads=tuple(dry_run.reads),
            calls=dry_run.calls,
            macs=dry_run.macs,
            values=dry_run.values,
            sparse_macs=dry_run.sparse_macs,
            sparse_weights=dry_run.sparse_weights,
        )

    target_edges = float(graph.topology.in_degrees[targets].sum(dtype=np.int64))
    full_step = step(graph.num_vertices, graph.num_edges, len(targets), target_edges)
    if not rates.covers(full_step, training.model):
        return None
    return SharedFullGraphStep(
        platform=platform,
        rates=rates,
        training=training,
        full_step=full_step,
        row=step(1, 0, 1, 0.0),
        chunk_rows=plan.chunk_rows,
    )


_DATA = ("topology", "features", "edges by source")
MAX_REPLICATION = 8
ASSUMED_BYTES_PER_S = 1e10
ASSUMED_MACS_PER_S = 5e10
"""Assumed rates of an uncalibrated machine: gathered bytes, and multiply-accumulates, per second."""


@dataclass(frozen=True, slots=True)
class PartitionChoice:
    """Partition of a graph whose parts can be combined into blocks."""

    homes: NDArray[Any]
    """Number of the part to which each vertex belongs: [V] integers."""
    number: int
    """Number of parts."""

    __repr__ = short_repr

    def blocks(self, count: int) -> NDArray[Any] | None:
        """Return the block of each vertex, [V], or None if `count` does not divide the number of parts."""
        return None if self.number % count else merge_parts(self.homes, self.number, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGraphComparison:
    """Predictions of full-graph training on several ranks."""

    machine: str
    """Name of the platform of every rank."""
    network: Network
    ranks: int
    algorithms: Sequence[AlgorithmEpoch]
    """Prediction for each algorithm that the ranks support."""
    scaling: Sequence[AlgorithmEpoch]
    """Prediction of the fastest algorithm for 1, 2, 4, ... ranks."""
    relative_error: float
    assumptions: Sequence[str]
    """Assumptions of the prediction, one sentence each."""

    @property
    def best_ranks(self) -> int:
        """Number of ranks in `scaling` with the shortest epoch."""
        return min(self.scaling, key=lambda epoch: (epoch.epoch_s, epoch.ranks)).ranks

    def to_json(self) -> dict[str, Any]:
        """Return the values that `hyrt predict --full-graph --ranks --json` prints."""
        return {
            "platform": self.machine,
            "ranks": self.ranks,
            "network": asdict(self.network),
            "algorithms": [epoch.to_json() for epoch in self.algorithms],
            "fastest": fastest_algorithm(self.algorithms).to_json(),
            "scaling": [epoch.to_json() for epoch in self.scaling],
            "relative_error": self.relative_error,
            "assumptions": list(self.assumptions),
        }


def predict_full_graph(
    platform: Platform,
    work: TrainingWorkload,
    config: Config,
    ranks: int,
    network: Network,
    homes: Path | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> FullGraphComparison:
    """Predict full-graph training on several equal machines, with traffic counted on a partition.

    `platform` is the machine of one rank. `homes` is a .npy file with the part of each vertex. None means the
    dataset's partition, or else a new one, which `notify` announces because it takes time and memory. Raises
    ConfigError if ranks cannot train the model together, the data cannot be opened, or the file does not
    match the ranks.
    """
    from hyrt.training.setup import select_edges

    if problem := find_rank_problem(config):
        raise ConfigError(problem)
    if work.at(1.0).edge_bytes is not None:
        raise ConfigError(
            f"ranks cannot train the heterogeneous graph {config.data.source} with --full-graph, only as "
            "one step of all targets with all neighbours: remove --full-graph, and set "
            "sampler.fanout=-1,... and data.batch_size"
        )
    graph = select_edges(config, open_graph(config.data.source, normalize=config.data.normalize))
    machine_work = full_graph_work(config, graph, platform, work, ranks=ranks)
    partitions, origin = _find_partitions(config, graph, ranks, homes, notify)

    def epochs(count: int) -> list[AlgorithmEpoch]:
        return candidate_epochs(graph.topology, partitions, count, machine_work, network)

    algorithms = epochs(ranks)
    if not algorithms:
        raise ConfigError(
            f"{config.data.source} has {pluralize(partitions[-1].number, 'part')}, which {ranks} ranks "
            "cannot share equally: use a number of ranks that divides the number of parts"
        )
    smaller = [2**power for power in range(ranks.bit_length()) if 2**power < ranks]
    scaling = [fastest_algorithm(epochs_of_count) for count in smaller if (epochs_of_count := epochs(count))]
    error, sharing = platform.relative_error, network.ranks_per_machine(ranks)
    return FullGraphComparison(
        machine=platform.name,
        network=network,
        ranks=ranks,
        algorithms=algorithms,
        scaling=[*scaling, fastest_algorithm(algorithms)],
        relative_error=ASSUMED_ERROR if error is None else max(error, ASSUMED_ERROR),
        assumptions=[
            origin,
            *([f"{sharing} ranks share the cores of each machine"] if sharing > 1 else []),
            "for fewer ranks, neighbouring parts are merged",
            "evaluations and the first exchange of raw features are not counted",
        ],
    )


def candidate_epochs(
    topology: Topology,
    partitions: Sequence[PartitionChoice],
    ranks: int,
    work: FullGraphWork,
    network: Network,
) -> list[AlgorithmEpoch]:
    """Predict an epoch with each algorithm that the ranks support.

    For each algorithm, the first of `partitions` that can be divided into its blocks is used.
    """
    epochs = []
    for copies in range(1, min(ranks, MAX_REPLICATION) + 1):
        num = ranks // copies
        # With more copies than blocks, some ranks would have no product to compute.
        is_supported = copies == 1 or (work.has_only_sums and copies <= num)
        if ranks % copies or not is_supported:
            continue
        block_choices = (partition.blocks(num) for partition in partitions)
        blocks = next((way for way in block_choices if way is not None), None)
        if blocks is None:
            continue
        volumes = count_block_volumes(topology.indptr, topology.indices, blocks, num)
        for way in ("1d", "1d-oblivious") if copies == 1 else ("1.5d", "1.5d-oblivious"):
            epochs.append(algorithm_epoch(way, volumes, ranks, work, network))
    return epochs


def work_at_assumed_rates(config: Config, graph: Graph) -> FullGraphWork:
    """Return the work of an epoch on an uncalibrated machine, at assumed rates."""
    model = meta_model(config, graph.num_features, graph.num_outputs)
    widths = ExchangeWidths.from_model(
        model, graph.num_vertices, graph.num_edges, is_sparse=isinstance(graph.features, SparseSource)
    )
    columns, weights = sum(widths.forward) + sum(widths.backward), sum(p.numel() for p in model.parameters())
    return FullGraphWork(
        forward_widths=widths.forward,
        backward_widths=widths.backward,
        has_only_sums=widths.is_additive,
        target_fraction=len(graph.split("train", config.data.split)) / max(1, graph.num_vertices),
        edges_s=4.0 * columns * graph.num_edges / ASSUMED_BYTES_PER_S,
        # Count the forward pass, its recomputation, and the gradients of rows and of weights.
        rows_s=4.0 * weights * graph.num_vertices / ASSUMED_MACS_PER_S,
        gradient_bytes=4.0 * weights,
        matrix_bytes=0.0,
        feature_bytes=0.0,
        graph_bytes=0.0,
    )


def full_graph_work(
    config: Config,
    graph: Graph,
    platform: Platform,
    training: TrainingWorkload,
    threads: int | None = None,
    *,
    ranks: int = 1,
) -> FullGraphWork:
    """Return the work of an epoch on one machine, by parts.

    `threads` is the total of the machine's ranks; None means all cores. `ranks` determines the size of
    chunks. Raises ConfigError if ranks that train in chunks cannot be predicted.
    """
    single = predict(platform, training)
    model = meta_model(config, graph.num_features, graph.num_outputs)
    host = platform.host
    cache_bytes = sys.maxsize if host.memory_gib is None else int(host.memory_gib * 2**30) // CACHE_DIVISOR
    is_sparse = isinstance(graph.features, SparseSource)
    widths = ExchangeWidths.from_model(
        model, graph.num_vertices, graph.num_edges, is_sparse=is_sparse, cache_bytes=cache_bytes
    )
    threads = min(host.cores or 1, threads or host.cores or 1)
    propagated_s = single.epoch_s - single.stages.synchronize_s
    edges_s = propagated_s * (single.gather_share or 0.0)
    rows_s, calls_s, chunk_rows = propagated_s - edges_s, 0.0, 1
    step = shared_full_graph_step(config, graph, platform, training, cache_bytes=cache_bytes)
    if step is not None:
        edges_s, rows_s, calls_s = step.seconds(threads)
        chunk_rows = step.chunk_rows
    forward, backward = widths.forward, widths.backward
    matrices = sum(size for name, size in single.arrays.items() if name not in _DATA)
    in_chunks = predict_rank_chunks(platform, training, config, ranks, threads)
    if in_chunks is not None:
        edges_s, rows_s, calls_s, chunk_rows = in_chunks.edges_s, in_chunks.rows_s, 0.0, 1
        matrices = sum(in_chunks.prediction.swapped.values())
        if in_chunks.columns is not None:
            forward = backward = in_chunks.columns
    return FullGraphWork(
        forward_widths=forward,
        backward_widths=backward,
        has_only_sums=widths.is_additive,
        target_fraction=len(graph.split("train", config.data.split)) / max(1, graph.num_vertices),
        edges_s=edges_s,
        rows_s=rows_s,
        rank_s=single.stages.synchronize_s + calls_s,
        cores=threads,
        chunk_rows=chunk_rows,
        max_rounds=MAX_ROUNDS,
        gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()),
        matrix_bytes=matrices,
        feature_bytes=single.arrays.get("features", 0.0),
        # The whole topology, which every rank reads.
        graph_bytes=single.arrays.get("topology", 0.0),
    )


def _find_partitions(
    config: Config, graph: Graph, ranks: int, homes: Path | None, say: Callable[[str], None]
) -> tuple[list[PartitionChoice], str]:
    """Return partitions of the graph for `ranks` or fewer ranks, and a sentence about their origin."""
    folder = Path(config.data.source)
    partitions: list[PartitionChoice] = []
    method, seed, for_fewer = "metis", config.seed, ""
    if homes is not None:
        homes_of_vertices = read_partition_map(homes, graph.num_vertices)
        num = int(homes_of_vertices.max()) + 1
        return [
            PartitionChoice(homes_of_vertices, num)
        ], f"exchanged rows are counted for the {pluralize(num, 'part')} in {homes}"
    if is_partition(folder):
        manifest = read_manifest(folder)
        num, files = manifest.num_parts, PartFiles.open(folder, str(folder))
        partitions.append(PartitionChoice(files.array(f"{GRAPH}/{PART_IDS_KEY}", verify=False), num))
        if not num % ranks:
            return partitions, f"exchanged rows are counted for the {pluralize(num, 'part')} in {folder}"
        # Partition the graph again with the same method and seed.
        method, seed = manifest.method, manifest.seed
        for_fewer = f", but for {pluralize(num, 'block')} or fewer, the parts in {folder} are merged"
    if method in ("metis", "volume") and importlib.util.find_spec("pymetis") is None:
        method = "block"
    training = np.zeros(graph.num_vertices, np.bool_)
    training[graph.split("train", config.data.split)] = True
    partitioner = get_partition_method(method)
    max_bytes = partitioner.memory_bytes(graph.num_vertices, graph.num_edges)
    say(
        f"partitioning the graph into {ranks} parts with {method}, which needs at most "
        f"{format_bytes(max_bytes)} more memory"
    )
    homes_of_vertices = partitioner.homes(graph.topology, training, ranks, seed)
    origin = f"exchanged rows are counted for {ranks} parts by {method}, made for this prediction{for_fewer}"
    return [*partitions, PartitionChoice(homes_of_vertices, ranks)], origin
