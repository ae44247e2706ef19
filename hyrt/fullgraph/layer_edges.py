"""Chunks of the edges along which a layer gathers, with their scales and the rows that each chunk reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import UnsupportedModelError
from hyrt.fullgraph.chunk_grid import ChunkCounts, EdgeChunk, EdgeChunks
from hyrt.fullgraph.gather_ops import LinearGatherOp
from hyrt.fullgraph.intervals import RowIntervals
from hyrt.fullgraph.matrix_pool import MatrixPool
from hyrt.nn.architecture import Aggregation
from hyrt.nn.operators.aggregate import Scales
from hyrt.sampling.minibatch import FullGraph

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class SelectiveRows:
    """Rows that are copied for each chunk of edges (selective scheduling of NeuGraph, section 3.2)."""

    columns: int
    """Number of intervals that are read."""
    starts: NDArray[np.int64]
    """First entry of each chunk in `ids`, [chunks + 1]; a chunk without entries is not filtered."""
    ids: NDArray[np.int32]
    """Row numbers within the interval, in ascending order."""

    @classmethod
    def select(
        cls,
        chunks: EdgeChunks,
        limits: Sequence[float],
        self_columns: Callable[[int, int], Array],
        memory: MatrixPool,
    ) -> SelectiveRows:
        """Choose the chunks whose rows are filtered, and renumber their columns in place to match.

        `limits` has a filter limit for each row interval: rows are filtered if the fraction that a chunk
        needs is smaller (0: never). `self_columns` returns the columns that a chunk, given by its row and
        column intervals, reads in addition to the columns of its edges.
        """

        def used(i: int, j: int) -> NDArray[np.bool_]:
            mask = np.zeros(chunks.columns.length(j), np.bool_)
            mask[chunks.chunk(i, j).columns] = True
            mask[self_columns(i, j)] = True
            return mask

        counts = np.zeros((chunks.rows.num, chunks.columns.num), np.int64)
        for i, limit in enumerate(limits):
            for j in range(chunks.columns.num) if limit else ():
                count = np.count_nonzero(used(i, j))
                if count < limit * chunks.columns.length(j):
                    counts[i, j] = count
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        selected = cls(chunks.columns.num, starts, memory.take((int(starts[-1]),), np.int32))
        for i, j in np.argwhere(counts).tolist():
            mask, edges = used(i, j), chunks.chunk(i, j).columns
            useful = selected.chunk_rows(i, j)
            assert useful is not None
            useful[:] = np.flatnonzero(mask)
            edges[:] = (np.cumsum(mask) - 1)[edges]
        return selected

    def chunk_rows(self, row: int, column: int) -> NDArray[np.int32] | None:
        """Return the rows of interval `column` that are copied for interval `row`; None if all are copied."""
        first, last = self.starts[row * self.columns + column : row * self.columns + column + 2]
        return self.ids[first:last] if last > first else None

    @property
    def max_rows(self) -> int:
        """Maximum number of rows of a filtered chunk; 0 if no chunk is filtered."""
        return int(np.diff(self.starts).max(initial=0))


@dataclass(frozen=True, slots=True)
class ScaledChunk:
    """Chunk with the scales of its rows and columns; scales are None if all are 1."""

    edges: EdgeChunk
    row_scale: Array | None
    column_scale: Array | None
    selected: Array | None
    """Rows of the interval to which the column numbers of the chunk refer; None for all rows."""


class LayerEdges:
    """Edges into all vertices or into a subset, in chunks for both directions.

    `chosen` [destinations.num_rows] are the destinations in ascending order, or None for all vertices.
    `limits` has the filter limits of the accumulated intervals, by the division of rows: see
    `SelectiveRows.select`. With `reads_self`, destinations also read their input rows.
    """

    def __init__(
        self,
        full_graph: FullGraph,
        destinations: RowIntervals,
        sources: RowIntervals,
        memory: MatrixPool,
        *,
        counts: ChunkCounts,
        chosen: Array | None = None,
        has_backward: bool,
        limits: Mapping[RowIntervals, Sequence[float]],
        reads_self: bool,
    ) -> None:
        topology = full_graph.topology
        if topology.edge_weights is not None:
            raise UnsupportedModelError(
                "devices that train a graph in chunks do not support edge weights: train on cpu, without "
                "fullgraph.chunks and fullgraph.device_memory"
            )
        self.destinations = destinations
        self.sources = sources
        self.vertices: Array = full_graph.rows if chosen is None else chosen
        """Destinations in ascending order, [n]."""
        self._whole = full_graph
        self._chosen = chosen
        self._memory = memory
        self._reads_self = reads_self
        self._forward = EdgeChunks.from_edges(
            topology.indptr, topology.indices, destinations, sources, memory, chosen, counts
        )
        self._backward: EdgeChunks | None = None
        if has_backward:
            same = chosen is None and topology.is_symmetric
            self._backward = self._forward if same else self._forward.transpose(memory)
        self._selected = self._select(self._forward, limits, reads_self, backward=False)
        self._selected_backward = self._selected
        if self._backward is not None and self._backward is not self._forward:
            self._selected_backward = self._select(self._backward, limits, reads_self, backward=True)
        self._scales: dict[Aggregation, Scales] = {}

    @property
    def max_selected_rows(self) -> int:
        """Maximum number of rows of a filtered chunk; 0 if no chunk is filtered."""
        return max(self._selected.max_rows, self._selected_backward.max_rows)

    def chunk(
        self, accumulated: int, read: int, aggregation: Aggregation, *, backward: bool
    ) -> ScaledChunk | None:
        """Return the edges between two intervals with the scales of `aggregation`; None if there are none.

        In the forward pass, destinations are accumulated and sources are read; in the backward pass, the
        reverse.
        """
        chunks = self._backward if backward else self._forward
        assert chunks is not None
        edges = chunks.chunk(accumulated, read)
        if not len(edges.columns):
            return None
        scales = self._factors(aggregation)
        destination, source = (read, accumulated) if backward else (accumulated, read)
        rows = scales.row[slice(*self.destinations.range(destination))]
        columns = None if scales.source is None else scales.source[slice(*self.sources.range(source))]
        selected = self._rows(accumulated, read, backward=backward)
        if backward:
            return ScaledChunk(edges, columns, _take(rows, selected), selected)
        return ScaledChunk(edges, rows, _take(columns, selected), selected)

    def self_edges(
        self, accumulated: int, read: int, aggregation: Aggregation, *, backward: bool
    ) -> ScaledChunk | None:
        """Return a self-loop for each destination that is in both intervals; parameters are as for `chunk`.

        Returns None if there are none, or if the aggregation has no self path.
        """
        if aggregation.self_path == "none" or not self._reads_self:
            return None
        rows, columns = self._self_ends(accumulated, read, backward=backward)
        if not len(rows):
            return None
        useful = self._rows(accumulated, read, backward=backward)
        if useful is not None:
            columns = np.searchsorted(useful, columns)
        edge_chunk, self_scale = EdgeChunk.diagonal(rows, columns), self._factors(aggregation).self_loop
        scale = (
            None
            if self_scale is None
            else self_scale[slice(*self.destinations.range(read if backward else accumulated))]
        )
        if backward:
            return ScaledChunk(edge_chunk, None, _take(scale, useful), useful)
        return ScaledChunk(edge_chunk, scale, None, useful)

    def reads_all_rows(
        self, accumulated: int, read: int, aggregation: Aggregation, *, backward: bool
    ) -> bool:
        """Return whether a chunk reads all rows of its interval; parameters are as for `chunk`."""
        if self._rows(accumulated, read, backward=backward) is not None:
            return False
        chunks = self.chunk, self.self_edges
        return any(each(accumulated, read, aggregation, backward=backward) is not None for each in chunks)

    def _self_ends(self, accumulated: int, read: int, *, backward: bool) -> tuple[Array, Array]:
        """Return the positions of the common vertices in the accumulated and in the read interval."""
        destination, source = (read, accumulated) if backward else (accumulated, read)
        first, last = self.sources.range(source)
        inside = self.vertices[slice(*self.destinations.range(destination))]
        low, high = np.searchsorted(inside, (first, last))
        positions, vertices = np.arange(low, high), inside[low:high] - first
        return (vertices, positions) if backward else (positions, vertices)

    def _rows(self, accumulated: int, read: int, *, backward: bool) -> Array | None:
        """Return the rows that are copied for a chunk; None for all rows of the interval."""
        return (self._selected_backward if backward else self._selected).chunk_rows(accumulated, read)

    def _select(
        self,
        chunks: EdgeChunks,
        limits: Mapping[RowIntervals, Sequence[float]],
        owns: bool,
        *,
        backward: bool,
    ) -> SelectiveRows:
        def others(accumulated: int, read: int) -> Array:
            return self._self_ends(accumulated, read, backward=backward)[1] if owns else np.empty(0, np.int64)

        return SelectiveRows.select(chunks, limits[chunks.rows], others, self._memory)

    def release(self) -> None:
        """Return the arrays to the pool."""
        self._forward.release(self._memory)
        self._memory.release(self._selected.ids)
        if self._backward is not None and self._backward is not self._forward:
            self._backward.release(self._memory)
            self._memory.release(self._selected_backward.ids)

    def _factors(self, aggregation: Aggregation) -> Scales:
        """Return the scales of the destinations and of all sources."""
        scales = self._scales.get(aggregation)
        if scales is None:
            topology = self._whole.topology
            linear = LinearGatherOp.from_aggregation(aggregation, topology, np.dtype(np.float32))
            row = np.ones(topology.num_vertices, np.float32) if linear.row_scale is None else linear.row_scale
            scales = Scales(row, linear.source_scale, linear.self_scale)
            if self._chosen is not None:
                self_scale = None if scales.self_loop is None else scales.self_loop[self._chosen]
                scales = replace(scales, row=scales.row[self._chosen], self_loop=self_scale)
            self._scales[aggregation] = scales
        return scales


def _take(values: Array | None, chosen: Array | None) -> Array | None:
    return values if values is None or chosen is None else values[chosen]
