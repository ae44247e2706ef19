"""The edges along which a layer gathers, in chunks, with the factors of their ends."""

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
    """A chunk, and the factors of its rows and columns; None where each is 1."""

    edges: EdgeChunk
    row_scale: Array | None
    column_scale: Array | None
    useful: Array | None
    """The rows of the interval that its columns are counted from; None for all."""


class LayerEdges:
    """The edges into all vertices, or into some, in chunks of either direction.

    Parameters
    ----------
    whole
        The graph.
    destinations, sources
        How the vertices are cut that gather, and those that are gathered from.
    memory
        Where arrays are taken from.
    chosen
        [destinations.num_rows] the vertices that gather, ascending; all by default.
    counts
        What the chunks hold.
    turns
        Whether gradients are taken back along them.
    limits
        By each cut, of every interval the useful fraction below which what is read for it is filtered.
    owns
        Whether destinations read their own rows here, too.
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
        """[n] the rows of the graph that gather, ascending."""
        self._whole = whole
        self._chosen = chosen
        self._memory = memory
        self._owns = owns
        self._forward = EdgeChunks.of(
            topology.indptr, topology.indices, destinations, sources, memory, chosen, counts
        )
        self._back: EdgeChunks | None = None
        if turns:
            same = chosen is None and topology.is_symmetric
            self._back = self._forward if same else self._forward.turned(memory)
        self._useful = self._select(self._forward, limits, owns, back=False)
        self._useful_back = self._useful
        if self._back is not None and self._back is not self._forward:
            self._useful_back = self._select(self._back, limits, owns, back=True)
        self._scales: dict[Aggregation, Scales] = {}

    @property
    def most_useful(self) -> int:
        """The most rows that are copied for a chunk whose rows are filtered; 0 where there is none."""
        return max(self._useful.most, self._useful_back.most)

    def chunk(
        self, accumulated: int, read: int, aggregation: Aggregation, *, back: bool
    ) -> GatheredChunk | None:
        """The edges between two intervals; None where there are none.

        Parameters
        ----------
        accumulated, read
            The intervals of the rows that are added to, and of those that are read: destinations and sources
            forward, and the other way round backward.
        aggregation
            Says the factors.
        back
            The direction.
        """
        chunks = self._back if back else self._forward
        assert chunks is not None
        edges = chunks.chunk(accumulated, read)
        if not len(edges.columns):
            return None
        given = self._factors(aggregation)
        destination, source = (read, accumulated) if back else (accumulated, read)
        rows = given.row[slice(*self.destinations.range(destination))]
        columns = None if given.source is None else given.source[slice(*self.sources.range(source))]
        useful = self._rows(accumulated, read, back=back)
        if back:
            return GatheredChunk(edges, columns, _some(rows, useful), useful)
        return GatheredChunk(edges, rows, _some(columns, useful), useful)

    def own(
        self, accumulated: int, read: int, aggregation: Aggregation, *, back: bool
    ) -> GatheredChunk | None:
        """An edge from each destination to itself as a source, where both are in the two intervals.

        Parameters as for `chunk`. None where there are none, or the aggregation has no path for own rows.
        """
        if aggregation.self_path == "none" or not self._owns:
            return None
        rows, columns = self._own_ends(accumulated, read, back=back)
        if not len(rows):
            return None
        useful = self._rows(accumulated, read, back=back)
        if useful is not None:
            columns = np.searchsorted(useful, columns)
        edges, own = EdgeChunk.diagonal(rows, columns), self._factors(aggregation).own
        scale = None if own is None else own[slice(*self.destinations.range(read if back else accumulated))]
        if back:
            return GatheredChunk(edges, None, _some(scale, useful), useful)
        return GatheredChunk(edges, scale, None, useful)

    def reads_all(self, accumulated: int, read: int, aggregation: Aggregation, *, back: bool) -> bool:
        """Whether all rows of an interval are read for another; parameters as for `chunk`."""
        if self._rows(accumulated, read, back=back) is not None:
            return False
        chunks = self.chunk, self.own
        return any(each(accumulated, read, aggregation, back=back) is not None for each in chunks)

    def _own_ends(self, accumulated: int, read: int, *, back: bool) -> tuple[Array, Array]:
        """Where destinations that are also among the sources stand in both intervals: that which is added to,
        and that which is read.
        """
        destination, source = (read, accumulated) if back else (accumulated, read)
        first, last = self.sources.range(source)
        inside = self.vertices[slice(*self.destinations.range(destination))]
        low, high = np.searchsorted(inside, (first, last))
        positions, vertices = np.arange(low, high), inside[low:high] - first
        return (vertices, positions) if back else (positions, vertices)

    def _rows(self, accumulated: int, read: int, *, back: bool) -> Array | None:
        """The rows that are copied for a chunk; None for all of the interval."""
        return (self._useful_back if back else self._useful).of(accumulated, read)

    def _select(
        self, chunks: EdgeChunks, limits: Mapping[Cut, Sequence[float]], owns: bool, *, back: bool
    ) -> UsefulRows:
        def others(accumulated: int, read: int) -> Array:
            return self._own_ends(accumulated, read, back=back)[1] if owns else np.empty(0, np.int64)

        return UsefulRows.select(chunks, limits[chunks.rows], others, self._memory)

    def release(self) -> None:
        """Give the arrays back."""
        self._forward.release(self._memory)
        self._memory.give(self._useful.ids)
        if self._back is not None and self._back is not self._forward:
            self._back.release(self._memory)
            self._memory.give(self._useful_back.ids)

    def _factors(self, aggregation: Aggregation) -> Scales:
        """Factors of the destinations and of all sources."""
        found = self._scales.get(aggregation)
        if found is None:
            topology = self._whole.topology
            linear = LinearGathering.of(aggregation, topology, np.dtype(np.float32))
            row = np.ones(topology.num_vertices, np.float32) if linear.row_scale is None else linear.row_scale
            found = Scales(row, linear.source_scale, linear.self_scale)
            if self._chosen is not None:
                own = None if found.own is None else found.own[self._chosen]
                found = replace(found, row=found.row[self._chosen], own=own)
            self._scales[aggregation] = found
        return found


def _some(values: Array | None, chosen: Array | None) -> Array | None:
    return values if values is None or chosen is None else values[chosen]
