"""Layer-wise sampling: FastGCN and LADIES, with inclusion probabilities proportional to importance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.graph.topology import Topology
from hyrt.runtime.buffer_pool import BufferPool, PooledArrays
from hyrt.runtime.rng import LAYER, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.kernels import add_importance, count_sampled, prefix_sum, write_sampled
from hyrt.sampling.sampler import Hop


def inclusion_probabilities(importance: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Compute inclusion probabilities proportional to importance, at most 1, that sum to `size`.

    `importance` is [n] float64, all positive. All probabilities are 1 if there are at most `size` items.
    """
    num = len(importance)
    if num <= size:
        return np.ones(num)
    order = np.sort(importance)[::-1]
    # The j most important items get probability 1 and the others share size - j; j is minimal so that no
    # other probability exceeds 1.
    rest = np.cumsum(order[::-1])[::-1]
    certain = np.arange(size)
    fits = order[:size] * (size - certain) <= rest[:size]
    j = int(np.argmax(fits)) if fits.any() else size - 1
    chances: NDArray[np.float64] = np.minimum(importance * ((size - j) / rest[j]), 1.0)
    return chances


def column_probabilities(topology: Topology, size: int) -> NDArray[np.float64]:
    """Compute [V] float64 probabilities proportional to the squared column norms of the adjacency matrix.

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
    """Sampler of a layer's sources among all vertices, with fixed inclusion probabilities.

    Chen, Ma and Xiao, "FastGCN: fast learning with graph convolutional networks via importance sampling",
    ICLR 2018, with Poisson sampling instead of sampling with replacement: each source is sampled
    independently, keyed by (seed, step, layer, source), with its inverse probability as weight.
    """

    topology: Topology
    probabilities: NDArray[np.float64]
    """[V] float64, inclusion probability of each vertex."""
    scale_weights: bool
    """Whether the weights of a vertex's edges are scaled to sum to its degree."""
    seed: int

    __repr__ = short_repr

    def draw(
        self, step: int, layer: int, vertices: Ids, workers: Workers, pool: BufferPool, arrays: PooledArrays
    ) -> Hop:
        """Sample edges, as in `LayerSampler`."""
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
    """Sampler of a layer's sources among the neighbours of the step's destinations, by importance.

    Zou et al., "Layer-dependent importance sampling for training deep and large graph convolutional
    networks", NeurIPS 2019. Importance is the squared norm of a source's column in the GCN-normalised
    adjacency, restricted to the rows of the step's destinations. Poisson sampling, as in
    `FastGcnLayerSampler`.
    """

    topology: Topology
    size: int
    """Expected number of sources per layer."""
    scale_weights: bool
    """Whether the weights of a vertex's edges are scaled to sum to its degree."""
    seed: int
    sums: NDArray[np.float64]
    """[V] float64 scratch, all 0 between two calls."""

    __repr__ = short_repr

    def draw(self, step: int, layer: int, vertices: Ids, workers: Workers) -> Hop:
        """Sample the edges of all vertices of a step's layer, as in `StepLayerSampler`."""
        topology = self.topology
        # Sort, so that float sums do not depend on the order of the targets.
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
    """Return the edges into `vertices` [n] from sampled sources; the vertices are distinct.

    `key` is from `hyrt.runtime.rng.stream_key`, and `probabilities` [V] float64 are inclusion probabilities.
    `scale_weights` scales the weights of a vertex's edges to sum to its degree. Raises OverflowError if there
    are too many edges for int32.
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
        raise OverflowError(f"{num:,} vertices have {edges:,} sampled edges: lower sampler.layer_size")
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
