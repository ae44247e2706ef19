"""LABOR-i: the neighbours of a layer of a whole step, drawn by importance.

Balin and Catalyurek, "Layer-Neighbor Sampling: defusing neighborhood explosion in GNNs", NeurIPS 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.machine.generator import SAMPLE, stream_key
from hyrt.machine.workers import Workers
from hyrt.quantities import one_line
from hyrt.sampling.block import Ids
from hyrt.sampling.kernels import prefix_sum
from hyrt.sampling.ranked.importance_kernels import forget_chances, raise_chances, solve_factors
from hyrt.sampling.ranked.least_kernels import draw_least_ranks
from hyrt.sampling.sampler import Hop

_STEP_GRAIN = 128


@dataclass(frozen=True, slots=True)
class ImportanceDraw:
    """Draws neighbours as LABOR-i does: fewer distinct sources for the variance of neighbour sampling.

    `iterations` times, every destination's factor is solved for the variance that neighbour sampling has, and
    every source's importance is multiplied by the largest factor of its destinations. What is minimised so is
    the number of distinct sources of all destinations of the step, so the draw depends on these: it is made
    for a whole step (`hyrt.sampling.layered`).

    A destination keeps as many neighbours as its inclusion probabilities add up to, rounded, by sequential
    Poisson sampling; weights are inverse probabilities, scaled to add up to the degree (Hajek's estimator).
    """

    graph: Graph
    """The graph."""
    fanouts: Sequence[int]
    """Neighbours of each vertex per layer that neighbour sampling would draw, counted from the input."""
    seed: int
    """The seed of all draws."""
    iterations: int
    """How often importances are raised, at least 1."""
    chances: NDArray[np.float64]
    """[V] float64 scratch, all 1 between two draws."""
    largest: NDArray[np.float64]
    """[V] float64 scratch, all 0 between two draws."""

    __repr__ = one_line

    def draw(self, step: int, layer: int, vertices: Ids, workers: Workers) -> Hop:
        """Draw the neighbours of all vertices of a step's layer, as `StepDraw` says."""
        topology, fanout = self.graph.topology, self.fanouts[layer - 1]
        indptr, indices, num = topology.indptr, topology.indices, len(vertices)
        factors, counts = np.empty(num, np.float64), np.empty(num, np.int32)

        def solve(start: int, stop: int) -> None:
            solve_factors(indptr, indices, vertices, fanout, self.chances, start, stop, factors, counts)

        for _ in range(self.iterations):
            workers.run(solve, num, _STEP_GRAIN)
            raise_chances(indptr, indices, vertices, factors, self.largest, self.chances)
        workers.run(solve, num, _STEP_GRAIN)
        edges = int(counts.sum(dtype=np.int64))
        if edges + num >= 2**31:
            raise OverflowError(
                f"{num:,} vertices with fan-out {fanout} have {edges:,} sampled edges: lower the fan-out"
            )
        offsets = np.empty(num + 1, np.int32)
        prefix_sum(counts, offsets)
        neighbors, weights = np.empty(edges, vertices.dtype), np.empty(edges, np.float32)
        ranks, positions = np.empty(edges + num, np.float64), np.empty(edges + num, np.int64)
        key = stream_key(self.seed, SAMPLE, step, layer)

        def keep(start: int, stop: int) -> None:
            draw_least_ranks(
                *(indptr, indices, vertices, offsets, key, self.chances, start, stop),
                *(ranks, positions, neighbors, weights),
            )

        workers.run(keep, num, _STEP_GRAIN)
        forget_chances(indptr, indices, vertices, self.chances)
        return Hop(topology.in_degrees[vertices], offsets, neighbors, weights=weights)
