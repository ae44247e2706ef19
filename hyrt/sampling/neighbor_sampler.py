"""Node-wise neighbour sampling without replacement, in a heterogeneous graph per relation.  Hamilton, Ying
and Leskovec, "Inductive representation learning on large graphs", NeurIPS 2017.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import ArgumentError
from hyrt.graph.graph import Graph
from hyrt.graph.topology import Topology
from hyrt.runtime.buffer_pool import BufferPool, PooledArrays
from hyrt.runtime.rng import SAMPLE, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.block_builder import BlockBuilder, ExcludedEdges, TargetShuffler
from hyrt.sampling.kernels import (
    count_by_relation,
    count_neighbors,
    prefix_sum,
    sample_by_relation,
    sample_neighbors,
)
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import Hop, HopSampler, check_call, check_fanouts, check_hop, check_sampler

_GRAIN = 1024


def sample_hop(
    topology: Topology,
    vertices: Ids,
    fanout: int,
    key: np.uint64,
    workers: Workers,
    pool: BufferPool,
    arrays: PooledArrays,
) -> Hop:
    """Sample `fanout` neighbours (-1: all) of distinct `vertices` [n] without replacement.

    The result for a vertex depends only on the vertex id and on `key`, which is from
    `hyrt.runtime.rng.stream_key`. `pool` is for temporary arrays, and `arrays` allocates the result. Raises
    OverflowError if there are too many edges for int32.
    """
    indptr, indices = topology.indptr, topology.indices
    num = len(vertices)
    degrees = arrays.take(num, np.int32)
    counts = np.empty(num, np.int32)

    def count(start: int, stop: int) -> None:
        count_neighbors(indptr, vertices, fanout, start, stop, degrees, counts)

    workers.run_rows(count, num, 4 * _GRAIN)
    offsets = arrays.take(num + 1, np.int32)
    edges = int(counts.sum(dtype=np.int64))
    if edges >= 2**31:
        raise OverflowError(
            f"{num:,} vertices with fan-out {fanout} have too many sampled edges ({edges:,}): lower the "
            "fan-out"
        )
    prefix_sum(counts, offsets)
    neighbors = arrays.take(edges, vertices.dtype)
    source = arrays if topology.has_edge_values else pool
    positions = source.take(edges, np.int64)
    types = topology.edge_types
    drawn = None if types is None else arrays.take(edges, types.dtype)

    def draw(start: int, stop: int) -> None:
        sample_neighbors(indptr, indices, vertices, offsets, key, start, stop, positions, neighbors)
        if types is not None and drawn is not None:
            of_rows = slice(offsets[start], offsets[stop])
            np.take(types, positions[of_rows], out=drawn[of_rows], mode="clip")

    workers.run_rows(draw, num, _GRAIN)
    if topology.has_edge_values:
        return Hop(degrees, offsets, neighbors, edge_types=drawn, edges=positions)
    pool.release(positions)
    return Hop(degrees, offsets, neighbors, edge_types=drawn)


class NeighborSampler:
    """Node-wise neighbour sampler of L blocks around targets. A unit is one target.

    The neighbours of a vertex in layer l of a step are sampled with the key (seed, step, l, vertex), so they
    are equal in every mini-batch, on every thread and for every split.

    Parameters
    ----------
    fanouts
        Fan-out per layer, the targets' layer first; -1 takes all neighbours.
    sampled_degrees
        Whether the blocks have the number of sampled neighbours as the degree of each vertex.
    graph, targets, batch_size, seed, class_weights
        See `hyrt.sampling.sampler_settings.SamplerSettings.build`.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Ids,
        fanouts: Sequence[int],
        batch_size: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
        *,
        sampled_degrees: bool = False,
    ) -> None:
        graph, targets = check_sampler(
            graph, targets, seed, class_weights, allow_empty=True, batch_size=batch_size
        )
        self._graph = graph
        # From here on, the input layer is first.
        self._fanouts = check_fanouts(fanouts)[::-1]
        self._seed = seed
        max_degrees = self._fanouts if sampled_degrees else None
        self._blocks = BlockBuilder(graph, len(self._fanouts), seed, class_weights, max_degrees)
        self.ids = self._blocks.ids
        self._order = TargetShuffler(targets, batch_size, seed)

    def steps_per_epoch(self) -> int:
        return self._order.steps_per_epoch

    def units(self, step: int) -> Ids:
        return self._order.batch(step)

    def exclude(self, step: int, excluded: ExcludedEdges | None) -> None:
        """Exclude edges; see `hyrt.sampling.block_builder.EdgeExcludingSampler`."""
        self._blocks.exclude(excluded)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        topology, pool = self._graph.topology, self._blocks.pool
        num = self._graph.num_vertices
        units = check_call(step, units, workers, in_place, hops, num, "vertices", takes_hops=True)

        def draw(layer: int, vertices: Ids, renumber: bool, arrays: PooledArrays) -> Hop:
            key, fanout = stream_key(self._seed, SAMPLE, step, layer), self._fanouts[layer - 1]
            if hops is not None:
                hop = hops.draw(vertices, fanout, key, relabel=renumber)
                return check_hop(hop, vertices, num, relabelled=renumber)
            return sample_hop(topology, vertices, fanout, key, workers, pool, arrays)

        return self._blocks.build(step, units, workers, draw, in_place=in_place, may_overwrite=hops is None)


class RelationSampler:
    """Sampler of L blocks around shuffled targets, with neighbours of each relation into each vertex.

    The sampled neighbours of a vertex and relation are a function of (seed, step, layer, vertex, relation),
    and the edges of a destination stay sorted by relation. The weight of an edge is the vertex's number of
    edges of the relation, divided by the number of sampled ones. `fanouts` are [L, R], with the targets'
    layer first; -1 takes all neighbours.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Ids,
        fanouts: Sequence[Sequence[int]],
        batch_size: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
    ) -> None:
        graph, targets = check_sampler(
            graph, targets, seed, class_weights, allow_empty=True, batch_size=batch_size
        )
        if graph.types is None:
            raise ArgumentError(
                f"{graph.name} has no relations: use hyrt.sampling.neighbor_sampler.NeighborSampler"
            )
        by_layer = [check_fanouts(list(of_layer), allow_zero=True) for of_layer in fanouts]
        if not by_layer or {len(of_layer) for of_layer in by_layer} != {len(graph.types.relations)}:
            raise ArgumentError(
                f"fanouts does not have a number for each of {len(graph.types.relations)} relations in each "
                "layer: pass a list of shape [layers, relations]"
            )
        self._num_vertices = graph.num_vertices
        # From here on, the input layer is first.
        self._fanouts = np.array(by_layer, np.int64)[::-1]
        self._topology = graph.topology
        self._seed = seed
        self._blocks = BlockBuilder(graph, len(by_layer), seed, class_weights)
        self.ids = self._blocks.ids
        self._order = TargetShuffler(targets, batch_size, seed)

    def steps_per_epoch(self) -> int:
        return self._order.steps_per_epoch

    def units(self, step: int) -> Ids:
        return self._order.batch(step)

    def exclude(self, step: int, excluded: ExcludedEdges | None) -> None:
        """Exclude edges; see `hyrt.sampling.block_builder.EdgeExcludingSampler`."""
        self._blocks.exclude(excluded)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        units = check_call(step, units, workers, in_place, hops, self._num_vertices, "vertices")

        def draw(layer: int, vertices: Ids, renumber: bool, arrays: PooledArrays) -> Hop:
            return self._draw(step, layer, vertices, workers, arrays)

        return self._blocks.build(step, units, workers, draw, in_place=in_place)

    def _draw(self, step: int, layer: int, vertices: Ids, workers: Workers, arrays: PooledArrays) -> Hop:
        """Sample the neighbours of vertices in one layer."""
        topology, pool, num = self._topology, self._blocks.pool, len(vertices)
        types = topology.edge_types
        assert types is not None, "a heterogeneous graph has relations"
        fanouts = self._fanouts[layer - 1]
        key = stream_key(self._seed, SAMPLE, step, layer)
        degrees, counts = arrays.take(num, np.int32), np.empty(num, np.int32)

        def count(start: int, stop: int) -> None:
            count_by_relation(topology.indptr, types, vertices, fanouts, start, stop, degrees, counts)

        workers.run_rows(count, num, 4 * _GRAIN)
        edges = int(counts.sum(dtype=np.int64))
        if edges >= 2**31:
            raise OverflowError(
                f"{num:,} vertices have too many sampled edges ({edges:,}): lower sampler.fanout"
            )
        offsets, neighbors = arrays.take(num + 1, np.int32), arrays.take(edges, vertices.dtype)
        prefix_sum(counts, offsets)
        drawn, weights = arrays.take(edges, types.dtype), arrays.take(edges, np.float32)
        positions = (arrays if topology.has_edge_values else pool).take(edges, np.int64)
        graph = (topology.indptr, topology.indices, types, vertices, fanouts, offsets, key)

        def draw(start: int, stop: int) -> None:
            sample_by_relation(*graph, start, stop, positions, neighbors, drawn, weights)

        workers.run_rows(draw, num, _GRAIN)
        if topology.has_edge_values:
            return Hop(degrees, offsets, neighbors, edge_types=drawn, weights=weights, edges=positions)
        pool.release(positions)
        return Hop(degrees, offsets, neighbors, edge_types=drawn, weights=weights)
