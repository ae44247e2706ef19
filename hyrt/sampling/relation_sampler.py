"""Node-wise neighbour sampling of a heterogeneous graph, per relation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import ArgumentError
from hyrt.graph.graph import Graph
from hyrt.runtime.buffer_pool import PooledArrays
from hyrt.runtime.rng import SAMPLE, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.block_builder import BlockBuilder, TargetShuffler
from hyrt.sampling.checks import check_call, check_fanouts, check_sampler
from hyrt.sampling.excluded_edges import ExcludedEdges
from hyrt.sampling.kernels import prefix_sum
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.relation_kernels import count_by_relation, sample_by_relation
from hyrt.sampling.sampler import Hop, HopSampler

_GRAIN = 1024


class RelationSampler:
    """Sampler of L blocks around shuffled targets, with neighbours of every relation into each vertex.

    The sampled neighbours of a vertex and relation are a function of (seed, step, layer, vertex, relation),
    and the edges of a destination stay sorted by relation. The weight of an edge is the number of existing
    edges of the relation, divided by the number of sampled ones. `fanouts` are [L, R], the targets' layer
    first; -1 takes all neighbours.
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
                "layer: give [layers, relations] numbers"
            )
        self._num_vertices = graph.num_vertices
        # Layers are counted from the input.
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
        """Exclude edges; see `hyrt.sampling.excluded_edges.EdgeExcludingSampler`."""
        self._blocks.exclude(excluded)

    def sample(
        self, step: int, units: Ids, workers: Workers, *, in_place: bool, hops: HopSampler | None = None
    ) -> MiniBatch:
        units = check_call(step, units, workers, in_place, hops, self._num_vertices, "vertices")

        def draw(layer: int, vertices: Ids, renumber: bool, arrays: PooledArrays) -> Hop:
            return self._draw(step, layer, vertices, workers, arrays)

        return self._blocks.build(step, units, workers, draw, in_place=in_place)

    def _draw(self, step: int, layer: int, vertices: Ids, workers: Workers, arrays: PooledArrays) -> Hop:
        """Sample the neighbours of some vertices in one layer."""
        topology, pool, num = self._topology, self._blocks.pool, len(vertices)
        types = topology.edge_types
        assert types is not None, "a typed graph has relations"
        fanouts = self._fanouts[layer - 1]
        key = stream_key(self._seed, SAMPLE, step, layer)
        degrees, counts = arrays.take(num, np.int32), np.empty(num, np.int32)

        def count(start: int, stop: int) -> None:
            count_by_relation(topology.indptr, types, vertices, fanouts, start, stop, degrees, counts)

        workers.run_rows(count, num, 4 * _GRAIN)
        edges = int(counts.sum(dtype=np.int64))
        if edges >= 2**31:
            raise OverflowError(f"{num:,} vertices have {edges:,} sampled edges: lower sampler.fanout")
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
