"""Prediction of distributed full-graph training, per algorithm."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hyrt_perfmodel.communication.full_graph_epoch import (
    AlgorithmEpoch,
    FullGraphWork,
    algorithm_epoch,
    fastest,
)
from hyrt_perfmodel.communication.network import Network
from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.prediction.predict import ASSUMED_ERROR, predict
from hyrt_perfmodel.workloads.workload import TrainingWorkload
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.distributed.full_graph.rank_grid import MOST_WAVES
from hyrt.distributed.full_graph.travelling_columns import TravellingColumns
from hyrt.distributed.sharing.possible_strategies import why_no_links
from hyrt.errors import ConfigError
from hyrt.fullgraph.plan import KEPT_PART
from hyrt.graph.graph import Graph
from hyrt.graph.partition.manifest import GRAPH, is_partition, read_manifest
from hyrt.graph.partition.methods.registry import partition_method
from hyrt.graph.partition.part_files import HOME, PartFiles
from hyrt.graph.partition.volumes.block_volumes import block_volumes, merged_parts
from hyrt.graph.row_source import SparseSource
from hyrt.graph.source import open_graph
from hyrt.graph.topology import Topology
from hyrt.predict.bare_model import bare_model
from hyrt.predict.chunks.chunks_on_ranks import chunks_on_ranks
from hyrt.predict.ranks.given_homes import read_homes
from hyrt.predict.ranks.step_on_ranks import step_on_ranks
from hyrt.quantities import counted, one_line, size

_DATA = ("topology", "features", "edges by source")
MOST_REPLICATION = 8
ASSUMED_BYTES_PER_S = 1e10
ASSUMED_MACS_PER_S = 5e10
"""Assumed rates of an uncalibrated machine: bytes of gathered rows, and multiply-accumulates, per second."""


@dataclass(frozen=True, slots=True)
class KnownParts:
    """A partition of a graph."""

    homes: NDArray[Any]
    """[V] integers, part of each vertex."""
    number: int
    """Number of parts."""

    __repr__ = one_line

    def blocks(self, count: int) -> NDArray[Any] | None:
        """Return [V] the block of each vertex, made of adjacent parts; None if the parts do not divide into
        `count` blocks.
        """
        return None if self.number % count else merged_parts(self.homes, self.number, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class FullGraphComparison:
    """Prediction of full-graph training on several ranks."""

    machine: str
    """Name of the platform of every rank."""
    network: Network
    """Network between the ranks."""
    ranks: int
    """Number of ranks."""
    algorithms: Sequence[AlgorithmEpoch]
    """One prediction per algorithm that the ranks support."""
    scaling: Sequence[AlgorithmEpoch]
    """Fastest algorithm for 1, 2, 4, ... ranks."""
    relative_error: float
    """Expected relative error."""
    assumptions: Sequence[str]
    """Assumptions, one sentence each."""

    @property
    def best_ranks(self) -> int:
        """Number of ranks in `scaling` with the shortest epoch."""
        return min(self.scaling, key=lambda epoch: (epoch.epoch_s, epoch.ranks)).ranks

    def to_json(self) -> dict[str, Any]:
        """Return the content that `hyrt predict --full-graph --ranks --json` prints."""
        return {
            "platform": self.machine,
            "ranks": self.ranks,
            "network": asdict(self.network),
            "algorithms": [epoch.to_json() for epoch in self.algorithms],
            "fastest": fastest(self.algorithms).to_json(),
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
    say: Callable[[str], None] = lambda line: None,
) -> FullGraphComparison:
    """Predict full-graph training on several equal machines; volumes are counted from a partition.

    Parameters
    ----------
    platform
        Machine of one rank.
    work
        Work of the full graph.
    config
        Settings of the work.
    ranks
        Number of machines.
    network
        Network between the machines.
    homes
        A .npy file with the part of each vertex; None to use the partition of the dataset, or to partition
        the graph.
    say
        Callback for a line before the graph is partitioned, which takes time and memory.

    Raises
    ------
    ConfigError
        If ranks cannot train the model together, the data cannot be opened, or the homes do not match the
        ranks.
    """
    from hyrt.training.setup import select_edges

    if problem := why_no_links(config):
        raise ConfigError(problem)
    if work.at(1.0).edge_bytes is not None:
        raise ConfigError(
            f"{config.data.source}: ranks train the whole of a typed graph as one step of all targets with "
            "all neighbours: omit --full-graph, and give sampler.fanout=-1,... and data.batch_size"
        )
    graph = select_edges(config, open_graph(config.data.source, normalize=config.data.normalize))
    machine_work = full_graph_work(config, graph, platform, work, ranks=ranks)
    partitions, origin = _find_partitions(config, graph, ranks, homes, say)

    def epochs(count: int) -> list[AlgorithmEpoch]:
        return candidates(graph.topology, partitions, count, machine_work, network)

    algorithms = epochs(ranks)
    if not algorithms:
        raise ConfigError(
            f"{config.data.source} has {counted(partitions[-1].number, 'part')}, which {ranks} ranks cannot "
            "share equally: give a number of ranks that divides it"
        )
    smaller = [2**power for power in range(ranks.bit_length()) if 2**power < ranks]
    scaling = [fastest(epochs_of_count) for count in smaller if (epochs_of_count := epochs(count))]
    error, sharing = platform.relative_error, network.ranks_of_machine(ranks)
    return FullGraphComparison(
        machine=platform.name,
        network=network,
        ranks=ranks,
        algorithms=algorithms,
        scaling=[*scaling, fastest(algorithms)],
        relative_error=ASSUMED_ERROR if error is None else max(error, ASSUMED_ERROR),
        assumptions=[
            origin,
            *([f"{sharing} ranks share the cores of each machine"] if sharing > 1 else []),
            "fewer ranks than that take neighbouring parts together",
            "no time is counted for evaluations, and none for the first exchange of raw features",
        ],
    )


def candidates(
    topology: Topology, known: Sequence[KnownParts], ranks: int, work: FullGraphWork, network: Network
) -> list[AlgorithmEpoch]:
    """Predict an epoch under each algorithm that the ranks support with the given partitions.

    Parameters
    ----------
    topology
        All edges.
    known
        Partitions, in order of preference; the first that divides into an algorithm's number of blocks is
        used.
    ranks
        Number of ranks.
    work, network
        Arguments of `algorithm_epoch`.
    """
    epochs = []
    for copies in range(1, min(ranks, MOST_REPLICATION) + 1):
        num = ranks // copies
        # With more copies than blocks, some ranks would have no product.
        is_supported = copies == 1 or (work.adds_up and copies <= num)
        if ranks % copies or not is_supported:
            continue
        block_choices = (partition.blocks(num) for partition in known)
        blocks = next((way for way in block_choices if way is not None), None)
        if blocks is None:
            continue
        volumes = block_volumes(topology.indptr, topology.indices, blocks, num)
        for way in ("1d", "1d-oblivious") if copies == 1 else ("1.5d", "1.5d-oblivious"):
            epochs.append(algorithm_epoch(way, volumes, ranks, work, network))
    return epochs


def work_at_assumed_rates(config: Config, graph: Graph) -> FullGraphWork:
    """Return the work of an epoch on an uncalibrated machine."""
    model = bare_model(config, graph.num_features, graph.num_outputs)
    widths = TravellingColumns.of(
        model, graph.num_vertices, graph.num_edges, is_sparse=isinstance(graph.features, SparseSource)
    )
    columns, weights = sum(widths.forward) + sum(widths.back), sum(p.numel() for p in model.parameters())
    return FullGraphWork(
        forward=widths.forward,
        back=widths.back,
        adds_up=widths.adds_up,
        target_part=len(graph.split("train", config.data.split)) / max(1, graph.num_vertices),
        edges_s=4.0 * columns * graph.num_edges / ASSUMED_BYTES_PER_S,
        # Forward, recomputed forward, and the gradients of rows and weights.
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
    """Return the parts of an epoch on one machine.

    Parameters
    ----------
    config, graph, platform
        Settings, data and machine.
    training
        Work of the full graph.
    threads
        Threads that compute on the machine, for all its ranks; None for one per core.
    ranks
        Number of ranks, which determines the size of chunks if they train in chunks.

    Raises
    ------
    ConfigError
        If ranks that train in chunks cannot be predicted.
    """
    single = predict(platform, training)
    model = bare_model(config, graph.num_features, graph.num_outputs)
    host = platform.host
    kept_bytes = sys.maxsize if host.memory_gib is None else int(host.memory_gib * 2**30) // KEPT_PART
    is_sparse = isinstance(graph.features, SparseSource)
    widths = TravellingColumns.of(
        model, graph.num_vertices, graph.num_edges, is_sparse=is_sparse, kept_bytes=kept_bytes
    )
    threads = min(host.cores or 1, threads or host.cores or 1)
    propagated_s = single.epoch_s - single.stages.synchronize_s
    edges_s = propagated_s * (single.gather_share or 0.0)
    rows_s, calls_s, chunk_rows = propagated_s - edges_s, 0.0, 1
    step = step_on_ranks(config, graph, platform, training, kept_bytes=kept_bytes)
    if step is not None:
        edges_s, rows_s, calls_s = step.seconds(threads)
        chunk_rows = step.chunk_rows
    forward, back = widths.forward, widths.back
    matrices = sum(size for name, size in single.arrays.items() if name not in _DATA)
    in_chunks = chunks_on_ranks(platform, training, config, ranks, threads)
    if in_chunks is not None:
        edges_s, rows_s, calls_s, chunk_rows = in_chunks.edges_s, in_chunks.rows_s, 0.0, 1
        matrices = sum(in_chunks.prediction.swapped.values())
        if in_chunks.columns is not None:
            forward = back = in_chunks.columns
    return FullGraphWork(
        forward=forward,
        back=back,
        adds_up=widths.adds_up,
        target_part=len(graph.split("train", config.data.split)) / max(1, graph.num_vertices),
        edges_s=edges_s,
        rows_s=rows_s,
        rank_s=single.stages.synchronize_s + calls_s,
        cores=threads,
        chunk_rows=chunk_rows,
        most_waves=MOST_WAVES,
        gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()),
        matrix_bytes=matrices,
        feature_bytes=single.arrays.get("features", 0.0),
        # Topology, and the rank's part of it in both directions.
        graph_bytes=single.arrays.get("topology", 0.0),
    )


def _find_partitions(
    config: Config, graph: Graph, ranks: int, homes: Path | None, say: Callable[[str], None]
) -> tuple[list[KnownParts], str]:
    """Return partitions of the graph for `ranks` ranks and fewer, and a sentence about their origin."""
    folder = Path(config.data.source)
    partitions: list[KnownParts] = []
    method, seed, for_fewer = "metis", config.seed, ""
    if homes is not None:
        homes_of_vertices = read_homes(homes, graph.num_vertices)
        num = int(homes_of_vertices.max()) + 1
        return [
            KnownParts(homes_of_vertices, num)
        ], f"rows are those that the {counted(num, 'part')} of {homes} need"
    if is_partition(folder):
        manifest = read_manifest(folder)
        num, files = manifest.num_parts, PartFiles.of(folder, str(folder))
        partitions.append(KnownParts(files.array(f"{GRAPH}/{HOME}", verify=False), num))
        if not num % ranks:
            return partitions, f"rows are those that the {counted(num, 'part')} of {folder} need"
        # Partition again with the same method and seed.
        method, seed = manifest.method, manifest.seed
        for_fewer = f", but {counted(num, 'block')} or fewer are made of the parts in {folder}"
    if method in ("metis", "volume") and importlib.util.find_spec("pymetis") is None:
        method = "block"
    training = np.zeros(graph.num_vertices, np.bool_)
    training[graph.split("train", config.data.split)] = True
    partitioner = partition_method(method)
    max_bytes = partitioner.memory_bytes(graph.num_vertices, graph.num_edges)
    say(f"cutting the graph into {ranks} parts by {method}: at most {size(max_bytes)} of memory more")
    homes_of_vertices = partitioner.homes(graph.topology, training, ranks, seed)
    origin = f"rows are those that {ranks} parts by {method} need, cut for this prediction{for_fewer}"
    return [*partitions, KnownParts(homes_of_vertices, ranks)], origin
