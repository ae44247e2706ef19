"""The neighbours of a layer, drawn by the weights of edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hyrt.graph.topology import Topology
from hyrt.machine.buffer_pool import BufferPool, TakenArrays
from hyrt.machine.generator import SAMPLE, stream_key
from hyrt.machine.workers import Workers
from hyrt.quantities import one_line
from hyrt.sampling.block import Ids
from hyrt.sampling.kernels import count_neighbors, prefix_sum
from hyrt.sampling.ranked.weighted_kernels import draw_by_priority, draw_with_replacement, scale_to_sums
from hyrt.sampling.sampler import Hop

_GRAIN = 256


@dataclass(frozen=True, slots=True)
class WeightedDraw:
    """Draws `fanout` neighbours of each vertex, those of heavier edges more often.

    What is drawn depends on (seed, step, layer, vertex). Without replacement it is priority sampling
    (Duffield, Lund and Thorup, Journal of the ACM 54, 2007): as many edges as are asked for, and factors with
    which sums over them are unbiased. A vertex with no more neighbours than that keeps all, with factor 1.
    """

    topology: Topology
    """The edges and their weights."""
    fanouts: Sequence[int]
    """Neighbours of each vertex per layer, counted from the input; -1 takes all."""
    replacement: bool
    """Whether an edge may be drawn several times, and is then there as often."""
    scaled: bool
    """Whether the factors of a vertex's edges are changed so that they, times the weights, add up as those of
    all its edges do."""
    seed: int
    """The seed of all draws."""

    __repr__ = one_line

    def draw(
        self, step: int, layer: int, vertices: Ids, workers: Workers, pool: BufferPool, arrays: TakenArrays
    ) -> Hop:
        """Draw the neighbours of some vertices, as `LayerDraw` says.

        Raises
        ------
        OverflowError
            If there are too many edges for int32.
        """
        topology, fanout, num = self.topology, self.fanouts[layer - 1], len(vertices)
        key = stream_key(self.seed, SAMPLE, step, layer)
        degrees, counts = arrays.take(num, np.int32), np.empty(num, np.int32)
        count_neighbors(topology.indptr, vertices, fanout, 0, num, degrees, counts)
        count = int(counts.sum(dtype=np.int64))
        if count + num >= 2**31:
            raise OverflowError(
                f"{num:,} vertices with fan-out {fanout} have {count:,} sampled edges: lower the fan-out"
            )
        offsets, neighbors = arrays.take(num + 1, np.int32), arrays.take(count, vertices.dtype)
        weights, edges = arrays.take(count, np.float32), arrays.take(count, np.int64)
        prefix_sum(counts, offsets)
        numbers, positions = pool.take(count + num, np.float64), pool.take(count + num, np.int64)
        graph = (topology.indptr, topology.indices, topology.edge_weights, vertices, offsets, key)

        def draw(start: int, stop: int) -> None:
            if self.replacement:
                draw_with_replacement(*graph, start, stop, numbers, neighbors, weights, edges)
            else:
                draw_by_priority(*graph, start, stop, numbers, positions, neighbors, weights, edges)

        workers.run(draw, num, _GRAIN)
        pool.give(numbers)
        pool.give(positions)
        if self.scaled:
            sums = topology.weighted_degrees[vertices]
            scale_to_sums(sums, offsets, topology.edge_weights, edges, weights)
        return Hop(degrees, offsets, neighbors, weights=weights, edges=edges)
