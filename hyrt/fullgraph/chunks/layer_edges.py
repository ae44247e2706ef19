"""Chunks of the edges along which a layer gathers, with the scales of their ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import UnsupportedModel
from hyrt.fullgraph.chunks.useful_rows import UsefulRows
from hyrt.fullgraph.gathering import LinearGathering
from hyrt.fullgraph.grid.edge_chunks import ChunkCounts, EdgeChunk, EdgeChunks
from hyrt.fullgraph.grid.intervals import Cut
from hyrt.fullgraph.recycled_matrices import RecycledMatrices
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.operators.aggregate import Scales
from hyrt.sampling.full.whole_graph import WholeGraph

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class GatheredChunk:
    """A chunk, and the scales of its rows and columns; None if all are 1."""

    edges: EdgeChunk
    row_scale: Array | None
    column_scale: Array | None
    useful: Array | None
    """The rows of the interval to which column numbers refer; None for all rows."""


class LayerEdges:
    """Edges into all vertices, or into a subset, in chunks of both directions.

    Parameters
    ----------
    whole
        The graph.
    destinations, sources
        Intervals of the destinations and of the sources.
    memory
        The pool of the arrays.
    chosen
        [destinations.num_rows] the destinations, ascending; all vertices by default.
    counts
        The number of edges and rows of the chunks.
    turns
        Whether there is a backward pass along the edges.
    limits
        For each cut, the useful fraction per interval below which the rows that it reads are filtered.
    owns
        Whether destinations also read their input rows here.
    """

    def __init__(
        self,
        whole: WholeGraph,
        destinations: Cut,
        sources: Cut,
        memory: RecycledMatrices,
        *,
        counts: ChunkCounts,
        chosen: Array | None = None,
        turns: bool,
        limits: Mapping[Cut, Sequence[float]],
        owns: bool,
    ) -> None:
        topology = whole.topology
        if topology.edge_weights is not None:
            raise UnsupportedModel(
                "devices that hold a part of a graph at a time do not multiply by weights of edges: train on "
                "cpu, without fullgraph.chunks and fullgraph.device_memory"
            )
        self.destinations = destinations
        self.sources = sources
        self.vertices: Array = whole.rows if chosen is None else chosen
        """[n] the destinations, ascending."""
        self._whole = whole
        self._chosen = chosen
        self._memory = memory
        self._reads_self = owns
        self._forward = EdgeChunks.of(
            topology.indptr, topology.indices, destinations, sources, memory, chosen, counts
        )
        self._backward: EdgeChunks | None = None
        if turns:
            same = chosen is None and topology.is_symmetric
            self._backward = self._forward if same else self._forward.turned(memory)
        self._selected = self._select(self._forward, limits, owns, back=False)
        self._selected_backward = self._selected
        if self._backward is not None and self._backward is not self._forward:
            self._selected_backward = self._select(self._backward, limits, owns, back=True)
        self._scales: dict[Aggregation, Scales] = {}

    @property
    def most_useful(self) -> int:
        """Return the most rows that are copied for a filtered chunk; 0 if no chunk is filtered."""
        return max(self._selected.most, self._selected_backward.most)

    def chunk(
        self, accumulated: int, read: int, aggregation: Aggregation, *, back: bool
    ) -> GatheredChunk | None:
        """Return the edges between two intervals; None if there are none.

        Parameters
        ----------
        accumulated, read
            The intervals of the accumulated rows and of the rows that are read: destinations and sources in
            the forward pass, the reverse in the backward pass.
        aggregation
            Determines the scales.
        back
            The direction.
        """
        chunks = self._backward if back else self._forward
        assert chunks is not None
        edges = chunks.chunk(accumulated, read)
        if not len(edges.columns):
            return None
        scales = self._factors(aggregation)
        destination, source = (read, accumulated) if back else (accumulated, read)
        rows = scales.row[slice(*self.destinations.range(destination))]
        columns = None if scales.source is None else scales.source[slice(*self.sources.range(source))]
        selected = self._rows(accumulated, read, back=back)
        if back:
            return GatheredChunk(edges, columns, _take(rows, selected), selected)
        return GatheredChunk(edges, rows, _take(columns, selected), selected)

    def own(
        self, accumulated: int, read: int, aggregation: Aggregation, *, back: bool
    ) -> GatheredChunk | None:
        """Return a self loop for each destination that is in both intervals.

        Parameters as for `chunk`. None if there are none, or if the aggregation has no self path.
        """
        if aggregation.self_path == "none" or not self._reads_self:
            return None
        rows, columns = self._self_ends(accumulated, read, back=back)
        if not len(rows):
            return None
        useful = self._rows(accumulated, read, back=back)
        if useful is not None:
            columns = np.searchsorted(useful, columns)
        edge_chunk, self_scale = EdgeChunk.diagonal(rows, columns), self._factors(aggregation).own
        scale = (
            None
            if self_scale is None
            else self_scale[slice(*self.destinations.range(read if back else accumulated))]
        )
        if back:
            return GatheredChunk(edge_chunk, None, _take(scale, useful), useful)
        return GatheredChunk(edge_chunk, scale, None, useful)

    def reads_all(self, accumulated: int, read: int, aggregation: Aggregation, *, back: bool) -> bool:
        """Return whether a chunk reads all rows of its interval; parameters as for `chunk`."""
        if self._rows(accumulated, read, back=back) is not None:
            return False
        chunks = self.chunk, self.own
        return any(each(accumulated, read, aggregation, back=back) is not None for each in chunks)

    def _self_ends(self, accumulated: int, read: int, *, back: bool) -> tuple[Array, Array]:
        """Return the positions of the common vertices of two intervals: in the accumulated one, and in the
        one that is read.
        """
        destination, source = (read, accumulated) if back else (accumulated, read)
        first, last = self.sources.range(source)
        inside = self.vertices[slice(*self.destinations.range(destination))]
        low, high = np.searchsorted(inside, (first, last))
        positions, vertices = np.arange(low, high), inside[low:high] - first
        return (vertices, positions) if back else (positions, vertices)

    def _rows(self, accumulated: int, read: int, *, back: bool) -> Array | None:
        """Return the rows that are copied for a chunk; None for all rows of the interval."""
        return (self._selected_backward if back else self._selected).of(accumulated, read)

    def _select(
        self, chunks: EdgeChunks, limits: Mapping[Cut, Sequence[float]], owns: bool, *, back: bool
    ) -> UsefulRows:
        def others(accumulated: int, read: int) -> Array:
            return self._self_ends(accumulated, read, back=back)[1] if owns else np.empty(0, np.int64)

        return UsefulRows.select(chunks, limits[chunks.rows], others, self._memory)

    def release(self) -> None:
        """Return the arrays to the pool."""
        self._forward.release(self._memory)
        self._memory.give(self._selected.ids)
        if self._backward is not None and self._backward is not self._forward:
            self._backward.release(self._memory)
            self._memory.give(self._selected_backward.ids)

    def _factors(self, aggregation: Aggregation) -> Scales:
        """Return the scales of the destinations and of all sources."""
        scales = self._scales.get(aggregation)
        if scales is None:
            topology = self._whole.topology
            linear = LinearGathering.of(aggregation, topology, np.dtype(np.float32))
            row = np.ones(topology.num_vertices, np.float32) if linear.row_scale is None else linear.row_scale
            scales = Scales(row, linear.source_scale, linear.self_scale)
            if self._chosen is not None:
                self_scale = None if scales.own is None else scales.own[self._chosen]
                scales = replace(scales, row=scales.row[self._chosen], own=self_scale)
            self._scales[aggregation] = scales
        return scales


def _take(values: Array | None, chosen: Array | None) -> Array | None:
    return values if values is None or chosen is None else values[chosen]
