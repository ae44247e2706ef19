"""Construction of blocks from sampled neighbours or subgraphs, without the edges that a step excludes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.graph.links.edges import find_edges_of_pairs
from hyrt.graph.topology import Topology
from hyrt.runtime.buffer_pool import BufferPool, PooledArrays
from hyrt.runtime.rng import SHUFFLE, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block, Ids
from hyrt.sampling.kernels import close_gaps, find_excluded, relabel
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import EdgeValues, Hop, check_step, gather_edge_values, id_dtype
from hyrt.sampling.subgraph_kernels import assign_rows, reset_rows


class ExcludedEdges:
    """Edges that carry no messages in a step, because they are targets of the step on any trainer.

    `pairs` are arrays [n, 2] of (source, destination), each with the relation whose edges are excluded, or
    with None in a homogeneous graph. Pairs without an edge and duplicate pairs have no effect.
    """

    def __init__(self, topology: Topology, pairs: Sequence[tuple[NDArray[Any], int | None]]) -> None:
        num = topology.num_vertices
        self._is_hetero = any(relation is not None for _, relation in pairs)
        ends, codes, counts = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        for each, relation in pairs:
            there = np.unique(each[:, 1].astype(np.int64) * num + each[:, 0])
            there = np.stack([there % num, there // num], axis=1)
            found = find_edges_of_pairs(topology, there, relation)[1]
            there = there[found > 0]
            ends.append(there[:, 1])
            codes.append(there[:, 0] + num * (relation or 0))
            counts.append(found[found > 0])
        into, code, count = (np.concatenate(each) for each in (ends, codes, counts))
        # Sort by destination, relation and source, then remove duplicates.
        order = np.lexsort((code, into))
        into, code, count = into[order], code[order], count[order]
        once = np.append(True, (into[1:] != into[:-1]) | (code[1:] != code[:-1]))[: len(into)]
        into, self._codes, count = into[once], code[once], count[once]
        self._topology = topology
        self._destinations, starts = np.unique(into, return_index=True)
        self._starts = np.append(starts, len(into)).astype(np.int64)
        self._removed = (
            np.add.reduceat(count, starts).astype(np.int32) if len(into) else np.empty(0, np.int32)
        )

    @cached_property
    def in_degrees(self) -> NDArray[np.int32]:
        """Return the in-degrees [V] int32 without the excluded edges."""
        degrees = self._topology.in_degrees.copy()
        degrees[self._destinations] -= self._removed
        return degrees

    @cached_property
    def weighted_degrees(self) -> NDArray[np.float32]:
        """Return `Topology.weighted_degrees` without the excluded edges, [V] float32."""
        topology = self._topology
        if topology.edge_weights is None:
            return self.in_degrees.astype(np.float32)
        # Sum the remaining weights. Subtracting all weights of a vertex would leave a rounding error.
        sums = topology.weighted_degrees.copy()
        rows, positions = self._left
        weights = topology.edge_weights[positions]
        sums[self._destinations] = np.bincount(rows, weights, minlength=len(self._destinations))
        return sums

    def run_weights(
        self, rows: NDArray[Any], relations: NDArray[Any], sums: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return `Topology.run_weights` of some edges, without the excluded edges.

        `rows` and `relations` [E] are the destination and the relation of each edge. `sums` [E] has the
        values of `Topology.run_weights`, and is overwritten.
        """
        keys, left = self._runs_left
        if not len(keys):
            return sums
        edge_keys = self._run_keys(rows, relations)
        at = np.searchsorted(keys, edge_keys).clip(max=len(keys) - 1)
        hit = keys[at] == edge_keys
        sums[hit] = left[at[hit]]
        return sums

    @cached_property
    def _runs_left(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the ascending keys of runs with excluded edges, and the remaining weight of each run."""
        weights, types = self._topology.edge_weights, self._topology.edge_types
        assert weights is not None
        assert types is not None
        into = np.repeat(self._destinations, np.diff(self._starts))
        keys = np.unique(self._run_keys(into, self._codes // self._topology.num_vertices))
        rows, positions = self._left
        edge_keys = self._run_keys(self._destinations[rows], types[positions])
        at = np.searchsorted(keys, edge_keys)
        hit = np.append(keys, -1)[at] == edge_keys
        return keys, np.bincount(at[hit], weights[positions[hit]], minlength=len(keys)).astype(np.float32)

    def _run_keys(self, rows: NDArray[Any], relations: NDArray[Any]) -> NDArray[np.int64]:
        types = self._topology.edge_types
        assert types is not None
        num: int = np.iinfo(types.dtype).max
        keys: NDArray[np.int64] = rows.astype(np.int64) * (num + 1) + relations
        return keys

    @cached_property
    def _left(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return destination index and edge position of the remaining in-edges of the destinations."""
        topology = self._topology
        starts, stops = topology.indptr[self._destinations], topology.indptr[self._destinations + 1]
        counts = stops - starts
        rows = np.repeat(np.arange(len(counts)), counts)
        positions = np.arange(len(rows)) + np.repeat(stops - np.cumsum(counts), counts)
        codes = topology.indices[positions].astype(np.int64)
        if self._is_hetero:
            assert topology.edge_types is not None
            codes += topology.edge_types[positions].astype(np.int64) * topology.num_vertices
        # Combined with the destination, the codes are unique and in ascending order.
        stride = int(codes.max(initial=0)) + 1
        excluded = np.repeat(np.arange(len(counts)), np.diff(self._starts)) * stride + self._codes
        is_included = ~np.isin(rows * stride + codes, excluded)
        return rows[is_included], positions[is_included]

    def remove_from(self, vertices: Ids, hop: Hop, rows: NDArray[np.int32], arrays: PooledArrays) -> Hop:
        """Remove the excluded edges from the sampled neighbours of `vertices` [n].

        `hop` must not be relabelled, and its arrays are overwritten. `rows` [V] int32 is scratch memory,
        which is -1 everywhere before and after the call.
        """
        assert hop.columns is None, "neighbours are left out before vertices are numbered"
        if not len(self._destinations) or not len(hop.neighbors):
            return hop
        rows[self._destinations] = np.arange(len(self._destinations), dtype=np.int32)
        offsets = arrays.take(len(hop.offsets), hop.offsets.dtype)
        buffer = arrays.take(len(hop.neighbors), np.int64)
        types = hop.edge_types if self._is_hetero else None
        edges = (vertices, hop.offsets, hop.neighbors, types)
        num = find_excluded(*edges, rows, self._starts, self._codes, offsets, buffer)
        rows[self._destinations] = -1
        if not num:
            return hop
        dropped = buffer[:num]

        def closed(values: NDArray[Any] | None) -> NDArray[Any] | None:
            if values is None:
                return None
            close_gaps(values, dropped)
            return values[: len(values) - num]

        neighbors = closed(hop.neighbors)
        assert neighbors is not None
        return replace(
            hop,
            offsets=offsets,
            neighbors=neighbors,
            edge_types=closed(hop.edge_types),
            weights=closed(hop.weights),
            edges=closed(hop.edges),
        )


@runtime_checkable
class EdgeExcludingSampler(Protocol):
    """Sampler of mini-batches around any vertices that supports the exclusion of edges."""

    def exclude(self, step: int, excluded: ExcludedEdges | None) -> None:
        """Exclude edges from the mini-batches of a step; None excludes nothing.

        Neighbours are sampled uniformly from the remaining ones.
        """
        ...


class TargetShuffler:
    """Batches of shuffled targets. Their order in an epoch depends only on the seed and the epoch."""

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
_SUBGRAPH_GRAIN = 256

LayerSampleFunction = Callable[[int, Ids, bool, PooledArrays], Hop]
"""Function that samples the neighbours of a layer. Its arguments are the layer (1..L; L is the targets'
layer), distinct vertices [n], whether to relabel them as in `Hop.sources`, and the allocator of the result.
"""


class BoundedDegrees:
    """Degrees of a topology, clipped to `limit` (-1: not clipped), and their GCN scales."""

    def __init__(self, edges: Topology | ExcludedEdges, limit: int) -> None:
        self._edges = edges
        self._limit = limit

    @cached_property
    def in_degrees(self) -> NDArray[np.int32]:
        """Return the clipped `Topology.in_degrees`, [V] int32."""
        degrees = self._edges.in_degrees
        return degrees if self._limit < 0 else np.minimum(degrees, self._limit)

    @property
    def weighted_degrees(self) -> NDArray[np.float32]:
        """Return `Topology.weighted_degrees` [V] float32, clipped; single weights are not clipped."""
        return self._edges.weighted_degrees if self._limit < 0 else self.in_degrees.astype(np.float32)

    @cached_property
    def gcn_scale(self) -> NDArray[np.float32]:
        """Return `Topology.gcn_scale` for the clipped degrees, [V] float32."""
        scale: NDArray[np.float32] = 1 / np.sqrt(self.weighted_degrees + np.float32(1))
        return scale


class BlockBuilder:
    """Builder of L blocks around targets, layer by layer, from the neighbours that a function samples.

    Parameters
    ----------
    layers
        Number of blocks per mini-batch.
    max_degrees
        Maximum degree per layer, input layer first. With -1 or None, degrees are not clipped.
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
        """Scratch memory [V] int32, which is -1 everywhere between two mini-batches."""
        self.pool = BufferPool()
        """Pool of the mini-batches' buffers, to which released mini-batches return their buffers."""

    def _stated_degrees(self, edges: Topology | ExcludedEdges) -> list[Topology | BoundedDegrees]:
        """Return the degrees of each layer, input layer first."""
        made = {max_degree: BoundedDegrees(edges, max_degree) for max_degree in self._max_degrees}
        return [
            edges if max_degree < 0 and isinstance(edges, Topology) else made[max_degree]
            for max_degree in self._max_degrees
        ]

    def exclude(self, excluded: ExcludedEdges | None) -> None:
        """Exclude edges from all mini-batches from now on; None excludes nothing."""
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
        """Build the mini-batch of the given targets.

        Parameters
        ----------
        step
            Step of the run.
        targets
            Distinct vertices [n].
        workers
            Worker team that runs the chunks.
        sample_layer
            Function that samples the neighbours of a layer, called for the targets' layer first.
        in_place
            Whether the first block has vertex ids as sources, and reads the feature matrix in place.
        may_overwrite
            Whether the results of `sample_layer` may be overwritten, because no other code reads these
            arrays.
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
        # Look up the edge values before the columns overwrite the neighbours.
        values = hop.values or gather_edge_values(
            *(self._graph.topology, destinations, hop.offsets, hop.neighbors, workers, arrays, hop.edges),
            has_types=hop.edge_types is not None,
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
            edge_types=values.types if hop.edge_types is None else hop.edge_types,
            edge_weights=values.weights,
            edge_features=values.features,
            resident=hop.resident,
        )
        if block.edge_weights is not None:
            sums = stated.weighted_degrees
            block.weighted_degrees = sums[destinations]
            block.source_weighted_degrees = sums if sources is None else sums[sources]
            if self._graph.types is not None:
                assert hop.edges is not None, "sampling by relation must return the sampled edges"
                block.run_weights = self._graph.topology.relation_weights[hop.edges]
                if self._excluded is not None:
                    assert hop.edge_types is not None
                    rows = np.repeat(destinations, np.diff(hop.offsets))
                    block.run_weights = self._excluded.run_weights(rows, hop.edge_types, block.run_weights)
        # Targets and neighbours have already been validated.
        return block.trusted()

    def _relabelled(
        self, destinations: Ids, hop: Hop, arrays: PooledArrays, drawn_here: bool
    ) -> tuple[Ids, Ids]:
        """Return sources and columns: those of the hop if it has them, otherwise new ones."""
        if hop.sources is not None and hop.columns is not None:
            return hop.sources, hop.columns
        # Sources are distinct, so there are at most as many as vertices.
        max_sources = min(len(destinations) + len(hop.neighbors), self._graph.num_vertices)
        buffer = arrays.take(max_sources, destinations.dtype)
        # The columns may overwrite the neighbours, since each neighbour is read before its column is written.
        in_its_place = drawn_here and hop.neighbors.dtype == np.int32
        columns = hop.neighbors if in_its_place else arrays.take(len(hop.neighbors), np.int32)
        return buffer[: relabel(destinations, hop.neighbors, self.local, buffer, columns)], columns


class SubgraphBatchBuilder:
    """Builder of mini-batches whose blocks all have the edges of the same subgraphs.

    The arguments are those of `hyrt.sampling.sampler_settings.SamplerSettings.build`.
    """

    def __init__(
        self, graph: Graph, layers: int, seed: int, class_weights: NDArray[np.float32] | None = None
    ) -> None:
        self.graph = graph
        self._layers = layers
        self._seed = seed
        self._class_weights = class_weights
        self.ids = id_dtype(graph)
        self.local = np.full(graph.num_vertices, -1, np.int32)
        """Scratch memory [V] int32, which is -1 everywhere between two mini-batches."""
        self.pool = BufferPool()
        """Pool of the mini-batches' buffers, to which released mini-batches return their buffers."""

    def join_subgraphs(
        self,
        subgraphs: Sequence[tuple[Ids, int]],
        sources: Ids,
        workers: Workers,
        work: Callable[[Ids, int, int], None],
    ) -> None:
        """Call `work(vertices, start, stop)` per subgraph while `local` has its rows in the disjoint union.

        A subgraph is its vertices, targets first, and its number of targets. The rows of the union, written
        to `sources`, begin with the targets of all subgraphs.
        """
        target_row, other_row = 0, sum(num_targets for _, num_targets in subgraphs)
        for vertices, num_targets in subgraphs:
            assign_rows(vertices, num_targets, target_row, other_row, self.local, sources)
            workers.run(partial(work, vertices), len(vertices), _SUBGRAPH_GRAIN)
            reset_rows(vertices, self.local)
            target_row += num_targets
            other_row += len(vertices) - num_targets

    def build(
        self,
        step: int,
        arrays: PooledArrays,
        *,
        sources: Ids,
        num_targets: int,
        offsets: Ids,
        columns: Ids,
        weights: NDArray[np.float32] | None = None,
        loss_weights: NDArray[np.float64] | None = None,
        normalizer: float,
        workers: Workers,
        in_place: bool,
    ) -> MiniBatch:
        """Build a mini-batch from a CSR over all rows, whose buffers are in `arrays`.

        `sources` [n] is the vertex of each row, targets first; a vertex may have several rows. `offsets`,
        `columns` and `weights` are the edges. The last block has only target destinations. `loss_weights` are
        the targets' factors in the loss, in addition to class weights. If `in_place`, the sources of the
        first block stay vertex ids of the graph.
        """
        topology = self.graph.topology
        num = len(sources)
        degrees = arrays.take(num, np.int32)
        np.take(topology.in_degrees, sources, out=degrees, mode="clip")
        values, sums, of_sources = EdgeValues(), None, None
        if topology.has_edge_values or topology.edge_types is not None:
            values = gather_edge_values(topology, sources, offsets, sources[columns], workers, arrays)
        if values.weights is not None:
            sums = topology.weighted_degrees
            of_sources = sums[sources]
        blocks = []
        for layer in range(1, self._layers + 1):
            rows = num_targets if layer == self._layers else num
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
                seed=self._seed,
                weights=None if weights is None else weights[edges],
                edge_weights=None if values.weights is None else values.weights[edges],
                edge_features=None if values.features is None else values.features[edges],
                edge_types=None if values.types is None else values.types[edges],
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
        targets = sources[:num_targets]
        labels = self.graph.vertices.select_labels(targets)
        factors = None if self._class_weights is None else self._class_weights[labels]
        if loss_weights is not None:
            factors = (loss_weights if factors is None else loss_weights * factors).astype(np.float32)
        batch = MiniBatch(
            step=step,
            targets=targets,
            blocks=blocks,
            labels=labels,
            target_weights=factors,
            normalizer=normalizer,
        )
        batch.on_release(arrays.release)
        return batch
