"""Construction of blocks: shuffled targets of each step, blocks of sampled neighbours, and square blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.graph.topology import Topology
from hyrt.runtime.buffer_pool import BufferPool, PooledArrays
from hyrt.runtime.rng import SHUFFLE, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block, Ids
from hyrt.sampling.checks import check_step, id_dtype
from hyrt.sampling.excluded_edges import ExcludedEdges
from hyrt.sampling.kernels import relabel
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import EdgeValues, Hop, gather_edge_values


class TargetShuffler:
    """Batches of shuffled targets; the order in an epoch depends only on the seed and the epoch."""

    def __init__(self, targets: Ids, batch_size: int, seed: int) -> None:
        self._targets = targets
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._order: Ids = targets

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self._targets) // self._batch_size)

    def batch(self, step: int) -> Ids:
        """Return the targets of one step of the run."""
        epoch, position = divmod(check_step(step), self.steps_per_epoch)
        if epoch != self._epoch:
            key = int(stream_key(self._seed, SHUFFLE, epoch, 0))
            self._order = np.random.Generator(np.random.Philox(key=key)).permutation(self._targets)
            self._epoch = epoch
        start = position * self._batch_size
        return self._order[start : start + self._batch_size]


_GRAIN = 1024

LayerSampleFunction = Callable[[int, Ids, bool, PooledArrays], Hop]
"""Callback that samples the neighbours of a layer. Arguments: layer (1..L, where L is the targets' layer),
[n] distinct vertices, whether to relabel vertices as in `Hop.sources`, and the allocator of the result.
"""


class BoundedDegrees:
    """Degrees of a topology, clipped to `limit` (-1 disables clipping), and their GCN scales."""

    def __init__(self, edges: Topology | ExcludedEdges, limit: int) -> None:
        self._edges = edges
        self._limit = limit

    @cached_property
    def in_degrees(self) -> NDArray[np.int32]:
        """Return [V] int32, as `Topology.in_degrees`."""
        degrees = self._edges.in_degrees
        return degrees if self._limit < 0 else np.minimum(degrees, self._limit)

    @property
    def weighted_degrees(self) -> NDArray[np.float32]:
        """Return [V] float32, as `Topology.weighted_degrees`; the weights themselves are not clipped."""
        return self._edges.weighted_degrees if self._limit < 0 else self.in_degrees.astype(np.float32)

    @cached_property
    def gcn_scale(self) -> NDArray[np.float32]:
        """Return [V] float32, as `Topology.gcn_scale`."""
        scale: NDArray[np.float32] = 1 / np.sqrt(self.weighted_degrees + np.float32(1))
        return scale


class BlockBuilder:
    """Builder of L blocks around targets, layer by layer, from neighbours that a callback samples.

    Parameters
    ----------
    layers
        Number of blocks per mini-batch.
    max_degrees
        Maximum degree per layer, counted from the input; -1 and None keep the true degrees.
    graph, seed, class_weights
        See `hyrt.sampling.sampler_settings.SamplerSettings.build`.
    """

    def __init__(
        self,
        graph: Graph,
        layers: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
        max_degrees: Sequence[int] | None = None,
    ) -> None:
        self._graph = graph
        self._layers = layers
        self._seed = seed
        self._class_weights = class_weights
        self._max_degrees = list(max_degrees or [-1] * layers)
        self._stated = self._stated_degrees(graph.topology)
        self._excluded: ExcludedEdges | None = None
        self.ids = id_dtype(graph)
        self.local = np.full(graph.num_vertices, -1, np.int32)
        """[V] int32 scratch, all -1 between two mini-batches."""
        self.pool = BufferPool()
        """Buffer pool of the mini-batches, which return their buffers when they are released."""

    def _stated_degrees(self, edges: Topology | ExcludedEdges) -> list[Topology | BoundedDegrees]:
        """Return the degrees per layer, the input's first."""
        made = {max_degree: BoundedDegrees(edges, max_degree) for max_degree in self._max_degrees}
        return [
            edges if max_degree < 0 and isinstance(edges, Topology) else made[max_degree]
            for max_degree in self._max_degrees
        ]

    def exclude(self, excluded: ExcludedEdges | None) -> None:
        """Exclude edges from all following mini-batches; None excludes nothing."""
        if excluded is not self._excluded:
            self._excluded = excluded
            self._stated = self._stated_degrees(self._graph.topology if excluded is None else excluded)

    def build(
        self,
        step: int,
        targets: Ids,
        workers: Workers,
        sample_layer: LayerSampleFunction,
        *,
        in_place: bool,
        may_overwrite: bool = True,
    ) -> MiniBatch:
        """Build the mini-batch of some targets.

        Parameters
        ----------
        step
            Step of the run.
        targets
            [n] distinct vertices.
        workers
            Worker team that runs the chunks.
        sample_layer
            Samples the neighbours of each layer, the targets' layer first.
        in_place
            Whether the first block keeps vertex ids as its sources and reads the feature matrix in place.
        may_overwrite
            Whether the arrays that `sample_layer` returns may be overwritten, since no other code reads them.
        """
        arrays = PooledArrays(self.pool)
        blocks: list[Block] = []
        destinations = targets
        for layer in range(self._layers, 0, -1):
            reads_in_place = in_place and layer == 1
            hop = sample_layer(layer, destinations, not reads_in_place, arrays)
            if self._excluded is not None:
                hop = self._excluded.remove_from(destinations, hop, self.local, arrays)
            block = self._block(
                destinations, hop, layer, step, workers, reads_in_place, arrays, drawn_here=may_overwrite
            )
            blocks.append(block)
            if block.sources is not None:
                destinations = block.sources
        labels = self._graph.vertices.select_labels(targets)
        batch = MiniBatch(
            step=step,
            targets=targets,
            blocks=blocks[::-1],
            labels=labels,
            target_weights=None if self._class_weights is None else self._class_weights[labels],
            normalizer=float(len(targets)),
        )
        batch.on_release(arrays.release)
        return batch

    def _block(
        self,
        destinations: Ids,
        hop: Hop,
        layer: int,
        step: int,
        workers: Workers,
        in_place: bool,
        arrays: PooledArrays,
        *,
        drawn_here: bool,
    ) -> Block:
        stated = self._stated[layer - 1]
        degrees = hop.degrees if stated is self._graph.topology else stated.in_degrees[destinations]
        # Look up edge values before columns overwrite the neighbours.
        values = hop.values or gather_edge_values(
            self._graph.topology, destinations, hop.offsets, hop.neighbors, workers, arrays, hop.edges
        )
        if in_place:
            sources, columns = None, hop.neighbors
            num_src, source_degrees = self._graph.num_vertices, stated.in_degrees
        else:
            sources, columns = self._relabelled(destinations, hop, arrays, drawn_here)
            num_src = len(sources)
            source_degrees = arrays.take(num_src, np.int32)

            def look_up(start: int, stop: int) -> None:
                np.take(stated.in_degrees, sources[start:stop], out=source_degrees[start:stop], mode="clip")

            workers.run(look_up, num_src, 16 * _GRAIN)
        block = Block(
            indptr=hop.offsets,
            columns=columns,
            destinations=destinations,
            sources=sources,
            num_src=num_src,
            degrees=degrees,
            source_degrees=source_degrees,
            source_scale=(lambda: stated.gcn_scale) if in_place else None,
            layer=layer,
            step=step,
            seed=self._seed,
            weights=hop.weights,
            edge_types=hop.edge_types,
            edge_weights=values.weights,
            edge_features=values.features,
            resident=hop.resident,
        )
        if block.edge_weights is not None:
            sums = stated.weighted_degrees
            block.weighted_degrees = sums[destinations]
            block.source_weighted_degrees = sums if sources is None else sums[sources]
            if self._graph.types is not None:
                assert hop.edges is not None, "who draws by relation says which edges were drawn"
                block.run_weights = self._graph.topology.relation_weights[hop.edges]
                if self._excluded is not None:
                    assert hop.edge_types is not None
                    rows = np.repeat(destinations, np.diff(hop.offsets))
                    block.run_weights = self._excluded.run_weights(rows, hop.edge_types, block.run_weights)
        # Targets and neighbours were validated on entry.
        return block.trusted()

    def _relabelled(
        self, destinations: Ids, hop: Hop, arrays: PooledArrays, drawn_here: bool
    ) -> tuple[Ids, Ids]:
        """Return sources and columns; the hop's arrays are used if it has them."""
        if hop.sources is not None and hop.columns is not None:
            return hop.sources, hop.columns
        # Sources are distinct, so their number is at most the number of vertices.
        max_sources = min(len(destinations) + len(hop.neighbors), self._graph.num_vertices)
        buffer = arrays.take(max_sources, destinations.dtype)
        # Each neighbour is read before its column is written.
        in_its_place = drawn_here and hop.neighbors.dtype == np.int32
        columns = hop.neighbors if in_its_place else arrays.take(len(hop.neighbors), np.int32)
        return buffer[: relabel(destinations, hop.neighbors, self.local, buffer, columns)], columns


def build_square_blocks(
    topology: Topology,
    arrays: PooledArrays,
    *,
    layers: int,
    step: int,
    seed: int,
    sources: Ids,
    num_targets: int,
    offsets: Ids,
    columns: Ids,
    weights: NDArray[np.float32] | None = None,
    workers: Workers,
    in_place: bool,
) -> list[Block]:
    """Build the blocks of all layers from the same edges; the last block has only target destinations.

    `sources` [n] is the vertex of each row, targets first; a vertex may have several rows. `offsets`,
    `columns` and `weights` are the edges as CSR over all rows. If `in_place`, the sources of the first block
    stay vertex ids of the graph.
    """
    num = len(sources)
    degrees = arrays.take(num, np.int32)
    np.take(topology.in_degrees, sources, out=degrees, mode="clip")
    values, sums, of_sources = EdgeValues(), None, None
    if topology.has_edge_values:
        values = gather_edge_values(topology, sources, offsets, sources[columns], workers, arrays)
    if values.weights is not None:
        sums = topology.weighted_degrees
        of_sources = sums[sources]
    blocks = []
    for layer in range(1, layers + 1):
        rows = num_targets if layer == layers else num
        edges = slice(0, int(offsets[rows]))
        block = Block(
            indptr=offsets[: rows + 1],
            columns=columns[edges],
            destinations=sources[:rows],
            sources=sources,
            num_src=num,
            degrees=degrees[:rows],
            source_degrees=degrees,
            layer=layer,
            step=step,
            seed=seed,
            weights=None if weights is None else weights[edges],
            edge_weights=None if values.weights is None else values.weights[edges],
            edge_features=None if values.features is None else values.features[edges],
            weighted_degrees=None if of_sources is None else of_sources[:rows],
            source_weighted_degrees=of_sources,
        )
        if in_place and layer == 1:
            vertices = arrays.take(block.num_edges, sources.dtype)
            np.take(sources, block.columns, out=vertices, mode="clip")
            block.columns, block.sources = vertices, None
            block.num_src, block.source_degrees = topology.num_vertices, topology.in_degrees
            block.source_scale = lambda: topology.gcn_scale
            block.source_weighted_degrees = sums
        blocks.append(block.trusted())
    return blocks
