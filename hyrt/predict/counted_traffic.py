"""Traffic of a step on a partitioned graph, including remote sampling, counted with the run's sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hyrt_perfmodel.traffic import (
    EDGES,
    ROWS,
    PurposeTraffic,
    StepTraffic,
    hidden_bytes,
    model_bytes,
    partial_bytes,
)
from hyrt_perfmodel.workload import Workload
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.distributed.strategies.home import HomeStrategy
from hyrt.distributed.strategies.hopgnn import HopGnnStrategy
from hyrt.distributed.strategies.load_balancing import expected_remote_rows, remote_reads
from hyrt.distributed.strategies.local import LocalOrder
from hyrt.distributed.strategies.naive_migration import NaiveMigrationStrategy
from hyrt.distributed.strategies.p3 import P3Strategy
from hyrt.distributed.strategies.registry import create_strategy, find_shares_problem
from hyrt.distributed.strategies.strategy import Placement, Seeds, Strategy, Traffic
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import SparseSource
from hyrt.graph.source import open_graph
from hyrt.predict.workload import aggregates_first
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.sampling.sampler import Sampler
from hyrt.sampling.settings.neighbor_settings import NeighborSettings


def read_partition_map(file: Path, num_vertices: int) -> NDArray[Any]:
    """Read the file of `--partition-map`, which contains [V] integers of at least 0.

    Raises ConfigError if the file is not such an array, or does not match the number of vertices.
    """
    usage = (
        f"--partition-map {file} must be a .npy file with the part of each vertex, integers [{num_vertices}]"
    )
    try:
        with file.open("rb") as opened:
            homes = np.lib.format.read_array(opened, allow_pickle=False)
    except OSError as error:
        raise ConfigError(f"{usage} ({error.strerror or error})") from None
    # Headers with too many values for memory or for int64 raise MemoryError or OverflowError in numpy.
    except (ValueError, MemoryError, OverflowError) as error:
        raise ConfigError(f"{usage} ({error})") from None
    if homes.shape != (num_vertices,) or homes.dtype.kind not in "iu":
        raise ConfigError(f"{usage}, got {homes.dtype}{list(homes.shape)}")
    if num_vertices and homes.min() < 0:
        raise ConfigError(f"{usage} of at least 0, got {homes.min()}")
    return homes


# Bytes of a vertex's degree and sample size in a response, and of the vertex count in a request.
_ANSWER_BYTES, _COUNT_BYTES = 8, 8


def remote_sampling_bytes(
    batch: MiniBatch, homes: NDArray[Any], rank: int, num_ranks: int
) -> NDArray[np.float64]:
    """Return the bytes [N, N] that ranks send to each other while `rank` samples its units of a step.

    The protocol is that of `RemoteNeighborSampler`. `homes` [V] contains the rank that stores the edges into
    each vertex.
    """
    sent = np.zeros((num_ranks, num_ranks))
    sources = batch.blocks[0].sources
    assert sources is not None
    for block in batch.blocks:
        # The sources of a block begin with its destinations, which are the sources of the block above.
        requested = homes[sources[: block.num_dst]]
        values = (block.edge_types, block.edge_weights, block.edge_features)
        edge_bytes = sources.itemsize + sum(
            value.itemsize * (value.shape[1] if value.ndim == 2 else 1)
            for value in values
            if value is not None
        )
        sampled_edges = np.bincount(requested, np.diff(block.indptr), num_ranks)
        vertices = np.bincount(requested, minlength=num_ranks)
        sent[rank] += vertices * sources.itemsize + _COUNT_BYTES
        sent[:, rank] += vertices * _ANSWER_BYTES + sampled_edges * edge_bytes
    sent[rank, rank] = 0
    return sent


# Number of steps to sample for every rank. Steps differ by only a few per cent.
_STEPS = 4
# Number of successive messages per hop: counts, vertices, sizes and neighbors.
_MESSAGES_PER_HOP = 4


class CountedSteps:
    """Steps of a run whose targets are placed on ranks and sampled, but not trained.

    `homes` [V] contains the rank that owns each vertex's features, which are not read. `fanouts` starts with
    the targets' layer, and is None if `sampler` is not a neighbor sampler; `sampler` is None for a neighbor
    sampler. `batch_size` is the number of targets per step of all N ranks. `wire_fraction` is the size of a
    sent row relative to its size in memory. `cache` is the size of the cache for remote rows per rank in
    bytes (int) or as a fraction of all rows (float), and requires `fanouts`. With `edges_are_split`, a rank
    has only the edges into its vertices and requests others. `machines` [N] is equal for ranks that share
    memory; None means that all rows are sent.
    """

    def __init__(
        self,
        graph: Graph,
        homes: NDArray[Any],
        num_ranks: int,
        fanouts: list[int] | None,
        batch_size: int,
        seed: int,
        split: int = 0,
        *,
        wire_fraction: float = 1.0,
        cache: int | float | None = None,
        sampler: Sampler | None = None,
        edges_are_split: bool = False,
        machines: Sequence[int] | None = None,
    ) -> None:
        targets = graph.split("train", split)
        self._topology, self._homes, self._num_ranks = graph.topology, homes, num_ranks
        self._targets, self._fanouts, self._batch_size = targets, fanouts, batch_size
        self._wire_part, self._cache = wire_fraction, cache
        machine_ids = np.arange(num_ranks) if machines is None else np.array(machines)
        # [N, N], whether a rank reads the rows of another rank in place.
        self._reads_in_place = machine_ids[:, None] == machine_ids
        if sampler is None:
            assert fanouts is not None
            sampler = NeighborSampler(graph, targets, fanouts, batch_size, seed)
        self._sampler, self._edges_are_split = sampler, edges_are_split
        ids = sampler.units(0).dtype
        self._local = LocalOrder(targets.astype(ids), homes, num_ranks, batch_size, seed)
        # Skip the last step of an epoch, which is smaller.
        self._steps = range(min(_STEPS, max(1, self._sampler.steps_per_epoch() - 1)))

    def traffic(self, strategy: Strategy, work: Workload) -> StepTraffic:
        """Return the mean traffic of a step whose units `strategy` places.

        Only the sizes of rows, vectors and weights in `work` are used, not its counts.
        """
        total, largest_share, time_steps = Traffic.zero(self._num_ranks), 0.0, 1
        edges = np.zeros((self._num_ranks, self._num_ranks))
        with Workers(1, "hyrt.predict") as workers:
            for step in self._steps:
                units = self._local.batch(step) if strategy.draws_locally else self._sampler.units(step)
                placement = self._place(strategy, units)

                def batch_of(
                    positions: NDArray[np.intp], step: int = step, units: NDArray[Any] = units
                ) -> MiniBatch:
                    return self._sampler.sample(step, units[positions], workers, in_place=False)

                def sampled(positions: NDArray[np.intp], of: Callable[..., MiniBatch] = batch_of) -> Block:
                    return of(positions).blocks[0]

                if self._edges_are_split:
                    edges += self._edge_request_bytes(placement, batch_of)
                total += strategy.traffic(placement, self._homes, sampled)
                units_per_rank = np.bincount(placement.ranks, minlength=self._num_ranks)
                largest_share += float(units_per_rank.max() / units_per_rank.mean()) / len(self._steps)
                time_steps = placement.num_times
        row_bytes = work.row_bytes * self._wire_part
        sent = np.where(self._reads_in_place, 0, total.rows)
        rows = sent * self._miss_rates(strategy, row_bytes) * row_bytes / len(self._steps)
        carried = partial_bytes(
            work, is_source=isinstance(strategy, NaiveMigrationStrategy) and strategy.carries_sources
        )
        traffic = self._in_bytes(total, rows, largest_share, time_steps, work, carried)
        if not edges.any():
            return traffic
        messages = _MESSAGES_PER_HOP * len(work.edges) * (self._num_ranks - 1)
        edge_traffic = PurposeTraffic(edges / len(self._steps), messages)
        return replace(traffic, purposes={**traffic.purposes, EDGES: edge_traffic})

    def _edge_request_bytes(
        self, placement: Placement, batch_of: Callable[[NDArray[np.intp]], MiniBatch]
    ) -> NDArray[np.float64]:
        """Return the bytes [N, N] that ranks send to sample the neighbors of a step."""
        positions_of_ranks = [placement.positions_of_rank(rank) for rank in range(self._num_ranks)]
        return sum(
            (
                remote_sampling_bytes(batch_of(positions), self._homes, rank, self._num_ranks)
                for rank, positions in enumerate(positions_of_ranks)
                if len(positions)
            ),
            np.zeros((self._num_ranks, self._num_ranks)),
        )

    def _place(self, strategy: Strategy, units: NDArray[Any]) -> Placement:
        def expected() -> NDArray[np.float64]:
            assert self._fanouts is not None
            return expected_remote_rows(self._topology, units, self._homes, self._num_ranks, self._fanouts[0])

        # Without expected remote rows, a run does not balance the load.
        has_expected = self._fanouts is not None and not self._edges_are_split
        return strategy.place(Seeds(self._homes[units], self._num_ranks, expected if has_expected else None))

    def _miss_rates(self, strategy: Strategy, row_bytes: float) -> NDArray[np.float64]:
        """Return the expected cache miss rate [N] of each rank's remote rows."""
        miss_rates = np.ones(self._num_ranks)
        if self._cache is None:
            return miss_rates
        assert self._fanouts is not None
        share = isinstance(self._cache, float)
        num_cached = int(self._cache * (self._topology.num_vertices if share else 1 / row_bytes))
        for rank in range(self._num_ranks):
            reads = remote_reads(
                self._topology,
                self._targets,
                self._homes,
                rank,
                self._num_ranks,
                strategy,
                self._batch_size,
                self._fanouts,
                np.flatnonzero(self._reads_in_place[rank]).tolist(),
            )
            miss_rates[rank] = 1 - reads.covered_accesses(num_cached) / max(
                reads.covered_accesses(len(reads.accesses)), 1e-30
            )
        return miss_rates

    def _in_bytes(
        self,
        total: Traffic,
        row_bytes: NDArray[np.float64],
        largest_share: float,
        time_steps: int,
        work: Workload,
        carried_bytes: float,
    ) -> StepTraffic:
        steps, peers = len(self._steps), self._num_ranks - 1
        migrates_once = total.partials.any()
        counted = {
            ROWS: PurposeTraffic(row_bytes, peers),
            "hidden": PurposeTraffic(total.hidden * hidden_bytes(work) / steps, 2 * peers),
            "partials": PurposeTraffic(total.partials * carried_bytes / steps, self._num_ranks),
            "models": PurposeTraffic(
                total.models * 2 * model_bytes(work) / steps, 0 if migrates_once else time_steps - 1
            ),
        }
        return StepTraffic(
            ranks=self._num_ranks,
            purposes={name: traffic for name, traffic in counted.items() if traffic.sent.any()},
            gradient_bytes=model_bytes(work),
            time_steps=time_steps,
            largest_share=largest_share,
        )


def configured_strategy(config: Config, name: str, time_steps: int | None = None) -> Strategy:
    """Return the strategy of a configured run, for counting the traffic of its model.

    `time_steps` is the number of time steps of `hopgnn`, if known.
    """
    if name == "hopgnn":
        return HopGnnStrategy(config.distributed.pre_gather, time_steps)
    if name == "home":
        return HomeStrategy(shares=config.distributed.numeric_shares)
    if name == "p3":
        return P3Strategy(multiplies_sources(config))
    if name == "naive-migration":
        return NaiveMigrationStrategy(multiplies_sources(config))
    return create_strategy(name)


def multiplies_sources(config: Config) -> bool:
    """Return whether the configured model's first layer multiplies or compares rows before it sums them."""
    return not aggregates_first(config) or config.model.aggregate == "max"


def load_counted_steps(
    config: Config, file: Path, num_ranks: int, *, edges_are_split: bool = False
) -> CountedSteps:
    """Return the steps of a configured run, with `homes` read from a .npy file of [V] integers.

    Raises ConfigError if the file does not match graph and ranks, or the sampler does not support a cache.
    """
    from hyrt.training.setup import build_sampler, select_edges

    graph = select_edges(config, open_graph(config.data.source, normalize=config.data.normalize))
    homes = read_partition_map(file, graph.num_vertices)
    if homes.max() >= num_ranks:
        raise ConfigError(
            f"--partition-map {file} has parts {homes.min()} to {homes.max()}, but the {num_ranks} ranks are "
            f"numbered 0 to {num_ranks - 1}: use another file, or change --ranks"
        )
    sampler = None
    if not isinstance(config.sampler, NeighborSettings):
        sampler = build_sampler(config, graph, graph.split("train", config.data.split))
    return configured_steps(config, graph, homes, num_ranks, sampler, edges_are_split=edges_are_split)


def configured_steps(
    config: Config,
    graph: Graph,
    homes: NDArray[Any],
    num_ranks: int,
    sampler: Sampler | None,
    *,
    edges_are_split: bool = False,
    machines: Sequence[int] | None = None,
) -> CountedSteps:
    """Return the steps of a configured run on an open graph.

    Raises ConfigError if the sampler or partitioned edges do not support a cache, or the shares are invalid.
    """
    if problem := find_shares_problem(config, num_ranks):
        raise ConfigError(problem)
    settings, cache = config.sampler, config.distributed.cache
    samples_neighbors = isinstance(settings, NeighborSettings)
    if cache is not None and (edges_are_split or not samples_neighbors):
        reason = "edges are split" if edges_are_split else f"sampler.kind is {settings.kind}"
        raise ConfigError(
            "distributed.cache requires sampler.kind=neighbor and all edges on every rank, but "
            f"{reason}: remove distributed.cache"
        )
    return CountedSteps(
        *(graph, homes, num_ranks, settings.fanouts(config.model.layers) if samples_neighbors else None),
        *(config.data.batch_size, config.seed, config.data.split),
        wire_fraction=wire_fraction(config, graph),
        cache=cache,
        sampler=sampler,
        edges_are_split=edges_are_split,
        machines=machines,
    )


def wire_fraction(config: Config, graph: Graph) -> float:
    """Return the size of a row, sent as `distributed.comm_dtype`, relative to its size in memory."""
    features = graph.features
    rounds = config.distributed.comm_dtype != "float32" and not isinstance(features, SparseSource)
    return 2 / features.value_bytes if rounds else 1.0
