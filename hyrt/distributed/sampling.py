"""Placement of each step's units on ranks, and sampling at the ranks that own the edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.config import Config
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.local_rows import LocalRows
from hyrt.distributed.monitoring import AdaptiveTimeSteps, RankSpeeds
from hyrt.distributed.process_group import RankGroup
from hyrt.distributed.strategies.home import HomeStrategy
from hyrt.distributed.strategies.hopgnn import HopGnnStrategy
from hyrt.distributed.strategies.load_balancing import expected_remote_rows
from hyrt.distributed.strategies.local import LocalOrder
from hyrt.distributed.strategies.registry import create_strategy, find_rank_problem
from hyrt.distributed.strategies.strategy import Placement, Ranks, Seeds, Strategy
from hyrt.errors import ConfigError
from hyrt.formatting import short_repr
from hyrt.graph.graph import Graph
from hyrt.graph.topology import Topology
from hyrt.runtime.buffer_pool import BufferPool, PooledArrays
from hyrt.runtime.rng import SAMPLE, stream_key
from hyrt.runtime.stage_threads import ChannelClosedError
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import sample_hop
from hyrt.sampling.sampler import EdgeValues, Hop, HopSampler, Sampler, gather_edge_values
from hyrt.sampling.settings.neighbor_settings import NeighborSettings
from hyrt.training.setup import PreparedRun


class AllRankBatches:
    """Sampler of the mini-batches of all ranks.

    `sampler` must not be shared, because other threads may sample at the same time. `units_of_ranks` divides
    the units of a step among the ranks. With `in_place`, the columns of blocks are vertices of the graph.
    """

    def __init__(
        self,
        sampler: Sampler,
        units_of_ranks: Callable[[int, Ids], Sequence[Ids]],
        *,
        in_place: bool,
    ) -> None:
        self._sampler = sampler
        self._units_of_ranks = units_of_ranks
        self._in_place = in_place

    def batches(self, step: int, workers: Workers) -> dict[int, MiniBatch]:
        """Sample the mini-batches of a step, by rank. Ranks without units have no mini-batch.

        The caller must release the mini-batches.
        """
        return {
            rank: self._sampler.sample(step, units, workers, in_place=self._in_place)
            for rank, units in enumerate(self._units_of_ranks(step, self._sampler.units(step)))
            if len(units)
        }


class StepPlacement:
    """Placement of every step's units, which is the same at all ranks.

    `strategy` returns the strategy of a step. `owners` [V] is the owner rank of each vertex; for links [M],
    the owner rank of each link's source. `expected_rows` computes `Seeds.remote_rows` from units; None if
    unknown. `order` has the batches of a strategy that draws targets from each part; None for the batches of
    the sampler.
    """

    def __init__(
        self,
        strategy: Callable[[int], Strategy],
        owners: NDArray[Any],
        rank: int,
        size: int,
        expected_rows: Callable[[Ids], NDArray[np.float64]] | None = None,
        order: LocalOrder | None = None,
    ) -> None:
        self.strategy = strategy
        """Function that returns the strategy of a step."""
        self._owners = owners
        self._rank = rank
        self._size = size
        self._expected_rows = expected_rows
        self._order = order
        self._paths: dict[int, Ranks] = {}

    def local_units(self, step: int, units: Ids) -> list[Ids]:
        """Return the units of a step that this rank trains, per time step."""
        if self._order is not None:
            units = self._order.batch(step)
        placement = self._place(step, units)
        if placement.num_times > 1:
            self._paths[step] = placement.paths
        return [np.ascontiguousarray(units[group]) for group in placement.positions_by_time(self._rank)]

    def units_by_rank(self, step: int, units: Ids) -> list[Ids]:
        """Return the units of a step that each rank trains, for a strategy with one time step."""
        placement = self._place(step, units)
        return [np.ascontiguousarray(units[placement.positions_of_rank(rank)]) for rank in range(self._size)]

    def _place(self, step: int, units: Ids) -> Placement:
        expected = self._expected_rows
        return self.strategy(step).place(
            Seeds(
                owners=self._owners[units],
                num_ranks=self._size,
                remote_rows=None if expected is None else lambda: expected(units),
            )
        )

    def move(self, step: int, time: int) -> tuple[Ranks, Ranks]:
        """Return the rank of each model in a time step and in the next one, [N] int32.

        Must be called once per time step, in order.
        """
        paths = self._paths[step]
        if time + 2 == len(paths):
            del self._paths[step]
        return paths[time], paths[time + 1]


def build_placement(
    config: Config,
    graph: Graph,
    local_rows: LocalRows,
    ranks: DistributedContext,
    prepared: PreparedRun,
    time_steps: AdaptiveTimeSteps | None,
    speeds: RankSpeeds | None,
    *,
    has_partitioned_topology: bool,
) -> StepPlacement:
    """Create the placement of each step's units."""
    settings, rank, size, homes = config.distributed, ranks.rank, ranks.size, local_rows.owners
    if graph.links is not None:
        # A link is trained by the owner of its source; `find_rank_problem` rejects strategies that place
        # vertices.
        homes = local_rows.owners[graph.links.split.train[:, 0]]
    if time_steps is not None:
        return StepPlacement(
            lambda step: HopGnnStrategy(settings.pre_gather, time_steps.num_times(step)),
            local_rows.owners,
            rank,
            size,
        )
    chosen = (
        HomeStrategy(shares=settings.numeric_shares)
        if settings.strategy == "home"
        else create_strategy(settings.strategy)
    )
    expected_rows = order = None
    if chosen.draws_locally:
        order = LocalOrder(prepared.targets, local_rows.owners, size, config.data.batch_size, config.seed)
    can_predict_rows = graph.links is None and not has_partitioned_topology
    if isinstance(config.sampler, NeighborSettings) and can_predict_rows:
        expected_rows = partial(
            expected_remote_rows,
            graph.topology,
            owners=local_rows.owners,
            num_ranks=size,
            fanout=config.fanouts[0],
        )
    if speeds is not None:

        def by_speed(step: int) -> HomeStrategy:
            return HomeStrategy(shares=speeds.shares_of(step))

        return StepPlacement(by_speed, homes, rank, size, expected_rows, order)
    return StepPlacement(lambda step: chosen, homes, rank, size, expected_rows, order)


def with_global_degrees(graph: Graph, group: RankGroup) -> Graph:
    """Return the graph of a rank's edges, with in-degrees and weighted degrees over all ranks' edges.

    Layers that weight neighbours by degree (GCN) need the degrees of remote sources. `graph` has only the
    edges into this rank's vertices, so other vertices appear to have no incoming edges. All ranks must call
    this at the same time.
    """
    local = graph.topology
    degrees = torch.from_numpy(local.in_degrees.copy())
    group.all_reduce(degrees, "edges")
    topology = Topology(
        local.indptr, local.indices, local.edge_types, local.edge_weights, local.edge_features
    )
    # Set the global values, which would otherwise be computed from the local edges.
    topology.__dict__["in_degrees"] = degrees.numpy()
    if local.edge_weights is not None:
        # All incoming edges of a vertex are on one rank, and other ranks add 0, so the sum is exact.
        sums = torch.from_numpy(local.weighted_degrees.copy())
        group.all_reduce(sums, "edges")
        topology.__dict__["weighted_degrees"] = sums.numpy()
    return replace(graph, topology=topology.with_checksum_of(local))


_PURPOSE = "edges"
Array = NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class RemoteHop:
    """Sampled neighbours of all vertices that a rank reaches in one hop of a step."""

    vertices: Ids
    """Sorted vertices, [n]."""
    hop: Hop
    """Neighbours of the vertices."""

    __repr__ = short_repr


class StepHops:
    """`HopSampler` that looks up a step's sampled neighbours, for mini-batches of any of its units."""

    def __init__(self) -> None:
        self._by_key: dict[int, RemoteHop] = {}

    def add(self, key: np.uint64, layer: RemoteHop) -> None:
        self._by_key[int(key)] = layer

    def draw(self, vertices: Ids, fanout: int, key: np.uint64, *, relabel: bool) -> Hop:
        """Look up the neighbours of vertices, which must be among the requested vertices."""
        layer = self._by_key[int(key)]
        positions = np.searchsorted(layer.vertices, vertices)
        starts = layer.hop.offsets[positions].astype(np.int64)
        counts = layer.hop.offsets[positions + 1] - starts
        offsets = np.concatenate([[0], np.cumsum(counts)])
        edges = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)
        types, values = layer.hop.edge_types, layer.hop.values
        return Hop(
            degrees=layer.hop.degrees[positions],
            offsets=offsets.astype(np.int32),
            neighbors=layer.hop.neighbors[edges],
            edge_types=None if types is None else types[edges],
            values=None if values is None else values.select(edges),
        )

    def close(self) -> None:
        """Do nothing, because no resources are held."""


class RemoteNeighborSampler:
    """Sampler of a step's neighbours at the ranks that own their edges, hop by hop.

    Each hop takes one request and one response: vertices are sent to their owners, which sample the same
    neighbours as a single machine would and send them back. All ranks must request the same steps in the same
    order, even without targets, because other ranks may need their edges.

    `topology` has the edges into the vertices of this rank, and `owners` [V] is the rank that owns the edges
    into each vertex. `group` belongs to the sampling thread. `fanouts` has the number of neighbours per
    vertex for each layer, starting with the targets' layer; -1 takes all.
    """

    def __init__(
        self, topology: Topology, owners: Array, group: RankGroup, fanouts: Sequence[int], seed: int
    ) -> None:
        self._topology = topology
        self._owners = owners
        self._group = group
        self._fanouts = list(fanouts)
        self._seed = seed
        self._pool = BufferPool()

    def sample_step(self, step: int, units: Ids, workers: Workers) -> StepHops:
        """Sample all hops of this rank's units of a step; all ranks must call this at the same time."""
        step_hops, layers, vertices = StepHops(), len(self._fanouts), np.unique(units)
        for depth, fanout in enumerate(self._fanouts):
            key = stream_key(self._seed, SAMPLE, step, layers - depth)
            layer = self._request_hop(vertices, fanout, key, workers)
            step_hops.add(key, layer)
            if depth + 1 < layers:
                vertices = np.union1d(vertices, layer.hop.neighbors)
        return step_hops

    def end(self) -> None:
        """Stop sampling: a waiting thread raises `ChannelClosedError`. This method is thread-safe."""
        self._group.abort(ChannelClosedError("no more neighbours are requested"))

    def _request_hop(self, vertices: Ids, fanout: int, key: np.uint64, workers: Workers) -> RemoteHop:
        group, owners = self._group, self._owners[vertices]
        by_owner = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=group.size).tolist()
        request_counts = group.exchange_counts(counts, _PURPOSE)
        requested = np.empty(sum(request_counts), vertices.dtype)
        self._exchange(vertices[by_owner], counts, requested, request_counts)
        arrays = PooledArrays(self._pool)
        sampled = sample_hop(self._topology, requested, fanout, key, workers, self._pool, arrays)
        sizes = np.stack([sampled.degrees, np.diff(sampled.offsets)], axis=1)
        degrees_and_counts = np.empty((len(vertices), 2), np.int32)
        self._exchange(sizes, request_counts, degrees_and_counts, counts)
        edges_sent, edges_received = (
            _sum_per_rank(sizes[:, 1], request_counts),
            _sum_per_rank(degrees_and_counts[:, 1], counts),
        )
        neighbors = np.empty(sum(edges_received), vertices.dtype)
        self._exchange(sampled.neighbors, edges_sent, neighbors, edges_received)
        local_values = gather_edge_values(
            *(self._topology, requested, sampled.offsets, sampled.neighbors, workers, arrays, sampled.edges),
            has_types=sampled.edge_types is not None,
        )

        def exchange_values(values: Array | None) -> Array | None:
            """Exchange an array with one entry per requested edge."""
            if values is None:
                return None
            out = np.empty((len(neighbors), *values.shape[1:]), values.dtype)
            self._exchange(values, edges_sent, out, edges_received)
            return out

        types = exchange_values(sampled.edge_types)
        values = EdgeValues(exchange_values(local_values.weights), exchange_values(local_values.features))
        arrays.release()
        offsets = np.concatenate([[0], np.cumsum(degrees_and_counts[:, 1])])
        # Responses are grouped by owner, so restore the order of the vertices.
        order = np.argsort(by_owner, kind="stable")
        lengths = degrees_and_counts[order, 1].astype(np.int64)
        ends = np.cumsum(lengths)
        edges = np.arange(len(neighbors)) + np.repeat(offsets[:-1][order] - (ends - lengths), lengths)
        return RemoteHop(
            vertices,
            Hop(
                degrees=degrees_and_counts[order, 0],
                offsets=np.concatenate([[0], ends]),
                neighbors=neighbors[edges],
                edge_types=None if types is None else types[edges],
                values=values.select(edges),
            ),
        )

    def _exchange(
        self, sent: Array, send_counts: Sequence[int], received: Array, receive_counts: Sequence[int]
    ) -> None:
        self._group.all_to_all(
            torch.from_numpy(np.ascontiguousarray(sent)),
            send_counts,
            torch.from_numpy(received),
            receive_counts,
            _PURPOSE,
        )


def _sum_per_rank(lengths: Array, counts: Sequence[int]) -> list[int]:
    """Return the sum of each group of consecutive lengths; counts[i] is the size of group i."""
    totals = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])[np.cumsum(counts)]
    sums: list[int] = np.diff(totals, prepend=0).tolist()
    return sums


class DistributedNeighborSampler:
    """Sampler of mini-batches from neighbours that were requested when the step was split.

    All ranks therefore exchange requests once per step, regardless of their numbers of trainers and time
    steps. `sampler` divides epochs into steps, and builds mini-batches from the neighbours that `hops`
    requests from other ranks. `local_units` returns this rank's units of a step, per time step. `workers`
    sample on behalf of other ranks. At most `in_flight` steps are concurrent.
    """

    def __init__(
        self,
        sampler: Sampler,
        hops: RemoteNeighborSampler,
        local_units: Callable[[int, Ids], list[Ids]],
        workers: Workers,
        in_flight: int,
    ) -> None:
        self._sampler = sampler
        self._hops = hops
        self._local_units = local_units
        self._workers = workers
        self._in_flight = in_flight
        self._step_hops: dict[int, StepHops] = {}

    def steps_per_epoch(self) -> int:
        return self._sampler.steps_per_epoch()

    def units(self, step: int) -> Ids:
        return self._sampler.units(step)

    def local_units(self, step: int, units: Ids) -> list[Ids]:
        """Request the neighbours of the units that this rank trains in a step; return these units."""
        local = self._local_units(step, units)
        self._step_hops[step] = self._hops.sample_step(step, np.concatenate(local), self._workers)
        # Keep the neighbours until the step is over: a failed work item is sampled again.
        self._step_hops.pop(step - self._in_flight - 1, None)
        return local

    def end(self) -> None:
        """Stop dividing steps among ranks; later requests for neighbours raise `ChannelClosedError`.

        This method is thread-safe.
        """
        self._hops.end()

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        return self._sampler.sample(step, units, workers, in_place=in_place, hops=self._step_hops[step])


def build_distributed_sampler(
    config: Config,
    graph: Graph,
    local_rows: LocalRows,
    ranks: DistributedContext,
    prepared: PreparedRun,
    local_units: Callable[[int, Ids], list[Ids]],
) -> DistributedNeighborSampler:
    """Create a sampler that requests neighbours from other ranks; all ranks must call this at the same time.

    `graph` has the edges into this rank's vertices, with the degrees of all vertices. `prepared.sampler`
    samples the local edges. `local_units` returns this rank's units of a step, per time step. Raises
    ConfigError if the strategy, the sampler or the cache needs all edges.
    """
    sampler = config.sampler
    if problem := find_rank_problem(config, has_split_edges=True):
        raise ConfigError(problem)
    assert isinstance(sampler, NeighborSettings), "only this kind supports split edges"
    hops = RemoteNeighborSampler(
        graph.topology, local_rows.owners, ranks.group("edges"), config.fanouts, config.seed
    )
    return DistributedNeighborSampler(
        prepared.sampler,
        hops,
        local_units,
        Workers(1, "hyrt.edges"),
        in_flight=config.runtime.max_in_flight_steps,
    )
