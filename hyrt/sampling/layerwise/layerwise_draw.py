"""The edges of a layer from the sources that were drawn for it: FastGCN and LADIES."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.topology import Topology
from hyrt.machine.buffer_pool import BufferPool, TakenArrays
from hyrt.machine.generator import LAYER, stream_key
from hyrt.machine.workers import Workers
from hyrt.quantities import one_line
from hyrt.sampling.block import Ids
from hyrt.sampling.kernels import prefix_sum
from hyrt.sampling.layerwise.layer_chances import chances_for
from hyrt.sampling.layerwise.layerwise_kernels import add_importance, count_drawn, write_drawn
from hyrt.sampling.sampler import Hop

_GRAIN = 256


@dataclass(frozen=True, slots=True)
class FastGcnDraw:
    """Samples the sources of a layer among all vertices, with fixed inclusion probabilities.

    Chen, Ma and Xiao, "FastGCN: fast learning with graph convolutional networks via importance sampling",
    ICLR 2018, with Poisson sampling instead of sampling with replacement: each source is sampled
    independently, keyed by (seed, step, layer, source), with its inverse probability as weight.
    """

    topology: Topology
    """The edges."""
    chances: NDArray[np.float64]
    """[V] float64, inclusion probability of each vertex."""
    scaled: bool
    """Whether the weights of a vertex are scaled to sum to its degree."""
    seed: int
    """The random seed."""

    __repr__ = one_line

    def draw(
        self, step: int, layer: int, vertices: Ids, workers: Workers, pool: BufferPool, arrays: TakenArrays
    ) -> Hop:
        """Sample edges, as in `LayerDraw`."""
        key = stream_key(self.seed, LAYER, step, layer)
        return drawn_edges(self.topology, vertices, key, self.chances, workers, arrays, scaled=self.scaled)


@dataclass(frozen=True, slots=True)
class LadiesDraw:
    """Draws the sources of a layer of a step among the neighbours of its destinations, by importance for
    them.

    Zou et al., "Layer-dependent importance sampling for training deep and large graph convolutional
    networks", NeurIPS 2019: in proportion to the squared norms of the columns of the GCN-normalised
    adjacency, of which only the rows of the step's destinations are kept. Poisson sampling, as in
    `FastGcnDraw`.
    """

    topology: Topology
    """The edges."""
    size: int
    """Expected number of sources per layer."""
    scaled: bool
    """Whether the weights of a vertex are scaled to sum to its degree."""
    seed: int
    """The random seed."""
    sums: NDArray[np.float64]
    """[V] float64 scratch, all 0 between two calls."""

    __repr__ = one_line

    def draw(self, step: int, layer: int, vertices: Ids, workers: Workers) -> Hop:
        """Sample the edges of all vertices of a step's layer, as in `StepDraw`."""
        topology = self.topology
        # Sort, so that float sums do not depend on the order of the targets.
        ordered = np.sort(vertices)
        most = min(int(topology.in_degrees[vertices].sum(dtype=np.int64)), topology.num_vertices)
        room = np.empty(most, vertices.dtype)
        graph = (topology.indptr, topology.indices)
        met = room[: add_importance(*graph, topology.in_degrees, ordered, self.sums, room)]
        self.sums[met] = chances_for(self.sums[met], self.size)
        key = stream_key(self.seed, LAYER, step, layer)
        arrays = TakenArrays(BufferPool())
        hop = drawn_edges(topology, vertices, key, self.sums, workers, arrays, scaled=self.scaled)
        self.sums[met] = 0.0
        return hop


def drawn_edges(
    topology: Topology,
    vertices: Ids,
    key: np.uint64,
    chances: NDArray[np.float64],
    workers: Workers,
    arrays: TakenArrays,
    *,
    scaled: bool,
) -> Hop:
    """Return the edges into some vertices from sampled sources.

    Parameters
    ----------
    topology
        The edges.
    vertices
        [n] distinct vertices.
    key
        The key from `hyrt.machine.generator.stream_key`.
    chances
        [V] float64, with what chance each vertex is drawn.
    workers
        The team of threads that runs the chunks.
    arrays
        Where the memory of the result is taken from.
    scaled
        Whether the weights of a vertex are made to add up to its degree.

    Raises
    ------
    OverflowError
        If there are too many edges for int32.
    """
    graph, num = (topology.indptr, topology.indices), len(vertices)
    counts = np.empty(num, np.int32)
    workers.run(
        lambda start, stop: count_drawn(*graph, vertices, key, chances, start, stop, counts), num, _GRAIN
    )
    edges = int(counts.sum(dtype=np.int64))
    if edges >= 2**31:
        raise OverflowError(f"{num:,} vertices have {edges:,} sampled edges: lower sampler.layer_size")
    offsets = arrays.take(num + 1, np.int32)
    prefix_sum(counts, offsets)
    neighbors, weights = arrays.take(edges, vertices.dtype), arrays.take(edges, np.float32)

    def write(start: int, stop: int) -> None:
        write_drawn(*graph, vertices, offsets, key, chances, scaled, start, stop, neighbors, weights)

    workers.run(write, num, _GRAIN)
    degrees = arrays.take(num, np.int32)
    np.take(topology.in_degrees, vertices, out=degrees, mode="clip")
    return Hop(degrees, offsets, neighbors, weights=weights)
