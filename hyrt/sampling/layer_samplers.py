"""Samplers of the edges of one layer: FastGCN, LADIES, LABOR and weighted neighbour sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.graph.graph import Graph
from hyrt.graph.topology import Topology
from hyrt.runtime.buffer_pool import BufferPool, PooledArrays
from hyrt.runtime.rng import LAYER, SAMPLE, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.kernels import add_importance, count_neighbors, count_sampled, prefix_sum, write_sampled
from hyrt.sampling.priority_kernels import (
    reset_probabilities,
    sample_bottom_k,
    sample_by_priority,
    sample_smallest_numbers,
    sample_with_replacement,
    scale_to_sums,
    solve_factors,
    update_probabilities,
)
from hyrt.sampling.sampler import Hop


def inclusion_probabilities(importance: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Compute inclusion probabilities that are proportional to importance, at most 1, and sum to `size`.

    `importance` [n] is float64, with positive values. If there are at most `size` items, all results are 1.
    """
    num = len(importance)
    if num <= size:
        return np.ones(num)
    order = np.sort(importance)[::-1]
    # The j most important items get probability 1, and the others share size - j. j is the smallest number
    # for which no other probability exceeds 1.
    rest = np.cumsum(order[::-1])[::-1]
    certain = np.arange(size)
    fits = order[:size] * (size - certain) <= rest[:size]
    j = int(np.argmax(fits)) if fits.any() else size - 1
    chances: NDArray[np.float64] = np.minimum(importance * ((size - j) / rest[j]), 1.0)
    return chances


def column_probabilities(topology: Topology, size: int) -> NDArray[np.float64]:
    """Compute probabilities [V] float64 proportional to the squared column norms of the adjacency matrix.

    `size` is the expected number of sampled sources.
    """
    num = topology.num_vertices
    sums = np.zeros(num)
    buffer = np.empty(num, np.int64)
    everyone = np.arange(num)
    graph = (topology.indptr, topology.indices, topology.in_degrees)
    candidates = buffer[: add_importance(*graph, everyone, sums, buffer)]
    sums[candidates] = inclusion_probabilities(sums[candidates], size)
    return sums


_GRAIN = 256


@dataclass(frozen=True, slots=True)
class FastGcnLayerSampler:
    """Sampler of a layer's sources among all vertices with fixed inclusion probabilities.

    Chen, Ma and Xiao, "FastGCN: fast learning with graph convolutional networks via importance sampling",
    ICLR 2018, with Poisson sampling instead of sampling with replacement: each source is sampled
    independently, with the key (seed, step, layer, source). Its weight is its inverse probability.
    """

    topology: Topology
    probabilities: NDArray[np.float64]
    """Inclusion probability of each vertex, [V] float64."""
    scale_weights: bool
    """Whether the weights of a vertex's edges are scaled such that their sum is its degree."""
    seed: int

    __repr__ = short_repr

    def draw(
        self, step: int, layer: int, vertices: Ids, workers: Workers, pool: BufferPool, arrays: PooledArrays
    ) -> Hop:
        """Sample edges; see `LayerSampler`."""
        key = stream_key(self.seed, LAYER, step, layer)
        return sample_edges(
            self.topology,
            vertices,
            key,
            self.probabilities,
            workers,
            arrays,
            scale_weights=self.scale_weights,
        )


@dataclass(frozen=True, slots=True)
class LadiesLayerSampler:
    """Sampler of a layer's sources, by importance, among the neighbours of the step's destinations.

    Zou et al., "Layer-dependent importance sampling for training deep and large graph convolutional
    networks", NeurIPS 2019. The importance of a source is the squared norm of its column in the
    GCN-normalized adjacency matrix, restricted to the rows of the step's destinations. Poisson sampling is
    used as in `FastGcnLayerSampler`.
    """

    topology: Topology
    size: int
    """Expected number of sources per layer."""
    scale_weights: bool
    """Whether the weights of a vertex's edges are scaled such that their sum is its degree."""
    seed: int
    sums: NDArray[np.float64]
    """Scratch memory [V] float64, which is 0 everywhere between two calls."""

    __repr__ = short_repr

    def draw(self, step: int, layer: int, vertices: Ids, workers: Workers) -> Hop:
        """Sample the edges of all destinations in a layer of a step; see `StepLayerSampler`."""
        topology = self.topology
        # Sort the vertices, so that sums do not depend on the order of the targets.
        ordered = np.sort(vertices)
        max_candidates = min(int(topology.in_degrees[vertices].sum(dtype=np.int64)), topology.num_vertices)
        buffer = np.empty(max_candidates, vertices.dtype)
        graph = (topology.indptr, topology.indices)
        candidates = buffer[: add_importance(*graph, topology.in_degrees, ordered, self.sums, buffer)]
        self.sums[candidates] = inclusion_probabilities(self.sums[candidates], self.size)
        key = stream_key(self.seed, LAYER, step, layer)
        arrays = PooledArrays(BufferPool())
        hop = sample_edges(
            topology, vertices, key, self.sums, workers, arrays, scale_weights=self.scale_weights
        )
        self.sums[candidates] = 0.0
        return hop


def sample_edges(
    topology: Topology,
    vertices: Ids,
    key: np.uint64,
    probabilities: NDArray[np.float64],
    workers: Workers,
    arrays: PooledArrays,
    *,
    scale_weights: bool,
) -> Hop:
    """Return the edges into distinct `vertices` [n] from sampled sources.

    `key` is from `hyrt.runtime.rng.stream_key`, and `probabilities` [V] float64 are inclusion probabilities.
    If `scale_weights`, the weights of a vertex's edges are scaled such that their sum is its degree. Raises
    OverflowError if there are too many edges for int32.
    """
    graph, num = (topology.indptr, topology.indices), len(vertices)
    counts = np.empty(num, np.int32)
    workers.run(
        lambda start, stop: count_sampled(*graph, vertices, key, probabilities, start, stop, counts),
        num,
        _GRAIN,
    )
    edges = int(counts.sum(dtype=np.int64))
    if edges >= 2**31:
        raise OverflowError(
            f"{num:,} vertices have too many sampled edges ({edges:,}): lower sampler.layer_size"
        )
    offsets = arrays.take(num + 1, np.int32)
    prefix_sum(counts, offsets)
    neighbors, weights = arrays.take(edges, vertices.dtype), arrays.take(edges, np.float32)

    def write(start: int, stop: int) -> None:
        write_sampled(
            *graph, vertices, offsets, key, probabilities, scale_weights, start, stop, neighbors, weights
        )

    workers.run(write, num, _GRAIN)
    degrees = arrays.take(num, np.int32)
    np.take(topology.in_degrees, vertices, out=degrees, mode="clip")
    return Hop(degrees, offsets, neighbors, weights=weights)


@dataclass(frozen=True, slots=True)
class LaborLayerSampler:
    """Sampler of the `fanout` neighbours of each vertex that have the smallest random numbers.

    In layer l of a step, the random number of a source has the key (seed, step, l, source). It does not
    depend on the destination, so destinations share sources if possible. This is LABOR-0 by sequential
    Poisson sampling, which keeps fan-outs fixed (Ohlsson, "Sequential Poisson sampling", Journal of Official
    Statistics 14, 1998): all sets of `fanout` neighbours of a vertex are equally likely, as in neighbour
    sampling, but sets of different vertices are not independent.
    """

    topology: Topology
    """Topology that has all in-edges of the vertices to sample for."""
    fanouts: Sequence[int]
    """Fan-out per layer, input layer first; -1 takes all neighbours."""
    seed: int

    __repr__ = short_repr

    def draw(
        self, step: int, layer: int, vertices: Ids, workers: Workers, pool: BufferPool, arrays: PooledArrays
    ) -> Hop:
        """Sample neighbours; see `LayerSampler`.

        Raises OverflowError if there are too many edges for int32.
        """
        topology, fanout, num = self.topology, self.fanouts[layer - 1], len(vertices)
        key = stream_key(self.seed, SAMPLE, step, layer)
        degrees, counts = arrays.take(num, np.int32), np.empty(num, np.int32)
        count_neighbors(topology.indptr, vertices, fanout, 0, num, degrees, counts)
        edges = int(counts.sum(dtype=np.int64))
        if edges >= 2**31:
            raise OverflowError(
                f"{num:,} vertices with fan-out {fanout} have too many sampled edges ({edges:,}): lower the "
                "fan-out"
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
            sample_smallest_numbers(*graph, vertices, offsets, key, start, stop, ranks, positions, neighbors)
            if types is not None and drawn is not None:
                of_rows = slice(offsets[start], offsets[stop])
                np.take(types, positions[of_rows], out=drawn[of_rows], mode="clip")

        workers.run(draw, num, _GRAIN)
        pool.release(ranks)
        if topology.has_edge_values:
            return Hop(degrees, offsets, neighbors, edge_types=drawn, edges=positions)
        pool.release(positions)
        return Hop(degrees, offsets, neighbors, edge_types=drawn)


_STEP_GRAIN = 128


@dataclass(frozen=True, slots=True)
class LaborImportanceSampler:
    """LABOR-i sampler, which has the variance of neighbour sampling, but fewer distinct sources.

    Each of the `iterations` rounds solves for the factor of every destination that gives the variance of
    neighbour sampling, then multiplies the importance of every source by the largest factor of its
    destinations. This minimizes the number of distinct sources over all destinations of the step. The result
    therefore depends on all destinations, and the edges of a whole step are sampled at once (`StepSampler`).

    The number of neighbours of a destination is the rounded sum of its inclusion probabilities (sequential
    Poisson sampling). Weights are inverse probabilities, scaled to sum to the degree (Hajek's estimator).
    """

    graph: Graph
    fanouts: Sequence[int]
    """Fan-out per layer of the neighbour sampling with equal variance, input layer first."""
    seed: int
    iterations: int
    """Number of fixed-point iterations for the importance of sources, at least 1."""
    probabilities: NDArray[np.float64]
    """Scratch memory [V] float64, which is 1 everywhere between two calls."""
    max_factors: NDArray[np.float64]
    """Scratch memory [V] float64, which is 0 everywhere between two calls."""

    __repr__ = short_repr

    def draw(self, step: int, layer: int, vertices: Ids, workers: Workers) -> Hop:
        """Sample the neighbours of all destinations in a layer of a step; see `StepLayerSampler`."""
        topology, fanout = self.graph.topology, self.fanouts[layer - 1]
        indptr, indices, num = topology.indptr, topology.indices, len(vertices)
        factors, counts = np.empty(num, np.float64), np.empty(num, np.int32)

        def solve(start: int, stop: int) -> None:
            solve_factors(indptr, indices, vertices, fanout, self.probabilities, start, stop, factors, counts)

        for _ in range(self.iterations):
            workers.run(solve, num, _STEP_GRAIN)
            update_probabilities(indptr, indices, vertices, factors, self.max_factors, self.probabilities)
        workers.run(solve, num, _STEP_GRAIN)
        edges = int(counts.sum(dtype=np.int64))
        if edges + num >= 2**31:
            raise OverflowError(
                f"{num:,} vertices with fan-out {fanout} have too many sampled edges ({edges:,}): lower the "
                "fan-out"
            )
        offsets = np.empty(num + 1, np.int32)
        prefix_sum(counts, offsets)
        neighbors, weights = np.empty(edges, vertices.dtype), np.empty(edges, np.float32)
        ranks, positions = np.empty(edges + num, np.float64), np.empty(edges + num, np.int64)
        key = stream_key(self.seed, SAMPLE, step, layer)

        def keep(start: int, stop: int) -> None:
            sample_bottom_k(
                *(indptr, indices, vertices, offsets, key, self.probabilities, start, stop),
                *(ranks, positions, neighbors, weights),
            )

        workers.run(keep, num, _STEP_GRAIN)
        reset_probabilities(indptr, indices, vertices, self.probabilities)
        return Hop(topology.in_degrees[vertices], offsets, neighbors, weights=weights)


@dataclass(frozen=True, slots=True)
class WeightedLayerSampler:
    """Sampler of `fanout` neighbours per vertex that prefers edges with large weights.

    The result is a function of (seed, step, layer, vertex). Sampling without replacement is priority sampling
    (Duffield, Lund and Thorup, Journal of the ACM 54, 2007): exactly `fanout` edges, with factors that make
    sums unbiased. If a vertex has at most `fanout` neighbours, all are sampled with factor 1.
    """

    topology: Topology
    """Topology with edge weights."""
    fanouts: Sequence[int]
    """Fan-out per layer, input layer first; -1 takes all neighbours."""
    replacement: bool
    """Whether to sample with replacement. An edge that is sampled repeatedly is repeated in the result."""
    scale_weights: bool
    """Whether factors are scaled such that the sum of factors times weights is the weighted degree."""
    seed: int

    __repr__ = short_repr

    def draw(
        self, step: int, layer: int, vertices: Ids, workers: Workers, pool: BufferPool, arrays: PooledArrays
    ) -> Hop:
        """Sample neighbours; see `LayerSampler`.

        Raises OverflowError if there are too many edges for int32.
        """
        topology, fanout, num = self.topology, self.fanouts[layer - 1], len(vertices)
        key = stream_key(self.seed, SAMPLE, step, layer)
        degrees, counts = arrays.take(num, np.int32), np.empty(num, np.int32)
        count_neighbors(topology.indptr, vertices, fanout, 0, num, degrees, counts)
        count = int(counts.sum(dtype=np.int64))
        if count + num >= 2**31:
            raise OverflowError(
                f"{num:,} vertices with fan-out {fanout} have too many sampled edges ({count:,}): lower the "
                "fan-out"
            )
        offsets, neighbors = arrays.take(num + 1, np.int32), arrays.take(count, vertices.dtype)
        weights, edges = arrays.take(count, np.float32), arrays.take(count, np.int64)
        prefix_sum(counts, offsets)
        numbers, positions = pool.take(count + num, np.float64), pool.take(count + num, np.int64)
        graph = (topology.indptr, topology.indices, topology.edge_weights, vertices, offsets, key)

        def draw(start: int, stop: int) -> None:
            if self.replacement:
                sample_with_replacement(*graph, start, stop, numbers, neighbors, weights, edges)
            else:
                sample_by_priority(*graph, start, stop, numbers, positions, neighbors, weights, edges)

        workers.run(draw, num, _GRAIN)
        pool.release(numbers)
        pool.release(positions)
        if self.scale_weights:
            sums = topology.weighted_degrees[vertices]
            scale_to_sums(sums, offsets, topology.edge_weights, edges, weights)
        return Hop(degrees, offsets, neighbors, weights=weights, edges=edges)
