"""LABOR-0: the neighbours of a layer, drawn with one number a source.

Balin and Catalyurek, "Layer-Neighbor Sampling: defusing neighborhood explosion in GNNs", NeurIPS 2023.
"""

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
from hyrt.sampling.ranked.labor_kernels import draw_least_numbers
from hyrt.sampling.sampler import Hop

_GRAIN = 256


@dataclass(frozen=True, slots=True)
class LaborDraw:
    """Samples the `fanout` neighbours of each vertex with the smallest random numbers.

    A source's number in layer l of a step has the key (seed, step, l, source), independent of the
    destination, so destinations share sources if they can. This is LABOR-0 by sequential Poisson sampling,
    which keeps fan-outs fixed (Ohlsson, "Sequential Poisson sampling", Journal of Official Statistics 14,
    1998): each set of `fanout` neighbours of a vertex is equally likely, as in neighbour sampling, but the
    sets of several vertices are not independent.
    """

    topology: Topology
    """The edges; it must have all edges into the given vertices."""
    fanouts: Sequence[int]
    """Neighbours of each vertex per layer, counted from the input; -1 takes all."""
    seed: int
    """The random seed."""

    __repr__ = one_line

    def draw(
        self, step: int, layer: int, vertices: Ids, workers: Workers, pool: BufferPool, arrays: TakenArrays
    ) -> Hop:
        """Sample the neighbours of some vertices, as in `LayerDraw`.

        Raises
        ------
        OverflowError
            If there are too many edges for int32.
        """
        topology, fanout, num = self.topology, self.fanouts[layer - 1], len(vertices)
        key = stream_key(self.seed, SAMPLE, step, layer)
        degrees, counts = arrays.take(num, np.int32), np.empty(num, np.int32)
        count_neighbors(topology.indptr, vertices, fanout, 0, num, degrees, counts)
        edges = int(counts.sum(dtype=np.int64))
        if edges >= 2**31:
            raise OverflowError(
                f"{num:,} vertices with fan-out {fanout} have {edges:,} sampled edges: lower the fan-out"
            )
        offsets, neighbors = arrays.take(num + 1, np.int32), arrays.take(edges, vertices.dtype)
        prefix_sum(counts, offsets)
        ranks, positions = (
            pool.take(edges, np.float64),
            (arrays if topology.has_edge_values else pool).take(edges, np.int64),
        )
        types = topology.edge_types
        drawn = None if types is None else arrays.take(edges, types.dtype)
        graph = (topology.indptr, topology.indices)

        def draw(start: int, stop: int) -> None:
            draw_least_numbers(*graph, vertices, offsets, key, start, stop, ranks, positions, neighbors)
            if types is not None and drawn is not None:
                of_rows = slice(offsets[start], offsets[stop])
                np.take(types, positions[of_rows], out=drawn[of_rows], mode="clip")

        workers.run(draw, num, _GRAIN)
        pool.give(ranks)
        if topology.has_edge_values:
            return Hop(degrees, offsets, neighbors, edge_types=drawn, edges=positions)
        pool.give(positions)
        return Hop(degrees, offsets, neighbors, edge_types=drawn)
