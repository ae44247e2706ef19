"""Edges of a graph, sorted into chunks by the intervals of their two ends."""

# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.chunks.intervals import RowIntervals
from hyrt.fullgraph.matrix_pool import MatrixPool
from hyrt.runtime.numba_cache import nb

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class EdgeChunk:
    """Edges between two intervals, as CSR over the rows that have edges, with interval-relative numbers."""

    rows: NDArray[np.int32]
    """[n] rows with edges, ascending."""
    starts: NDArray[np.int32]
    """[n + 1] first edge of each row."""
    columns: NDArray[np.int32]
    """[e] column of each edge."""

    @classmethod
    def diagonal(cls, rows: Array, columns: Array) -> EdgeChunk:
        """Build a chunk with one edge per pair of row and column; rows must ascend."""
        starts = np.arange(len(rows) + 1, dtype=np.int32)
        return cls(rows.astype(np.int32), starts, columns.astype(np.int32))


@dataclass(frozen=True, slots=True)
class ChunkCounts:
    """Edges and non-empty rows per chunk."""

    edges: NDArray[np.int64]
    """[rows, columns] number of edges."""
    rows: NDArray[np.int64]
    """[rows, columns] number of rows with edges."""


def count_chunks(
    indptr: Array, indices: Array, rows: RowIntervals, columns: RowIntervals, chosen: Array | None = None
) -> ChunkCounts:
    """Count the edges of all chunks of a CSR matrix (`indptr` [V + 1], `indices` [E]).

    If `chosen` [rows.num_rows] is given, only edges of these vertices count, and row intervals are over them.
    """
    edges = np.zeros((rows.num, columns.num), np.int64)
    filled = np.zeros((rows.num, columns.num), np.int64)
    _count(indptr, indices, _all(chosen), chosen is None, rows.starts, columns.starts, edges, filled)
    return ChunkCounts(edges, filled)


@dataclass(frozen=True, slots=True)
class EdgeChunks:
    """All edges of a graph, grouped by chunk."""

    rows: RowIntervals
    columns: RowIntervals
    edge_starts: NDArray[np.int64]
    """[rows * columns + 1] first edge of each chunk."""
    row_starts: NDArray[np.int64]
    """[rows * columns + 1] first row of each chunk."""
    row_ids: NDArray[np.int32]
    """Rows with edges, of all chunks."""
    offsets: NDArray[np.int32]
    """First edge of each of these rows within its chunk; one more entry per chunk."""
    edges: NDArray[np.int32]
    """[E] column of each edge."""

    @classmethod
    def from_edges(
        cls,
        indptr: Array,
        indices: Array,
        rows: RowIntervals,
        columns: RowIntervals,
        memory: MatrixPool,
        chosen: Array | None = None,
        counts: ChunkCounts | None = None,
    ) -> EdgeChunks:
        """Sort the edges into chunks; see `count_chunks`, which computes `counts` by default."""
        counts = counts or count_chunks(indptr, indices, rows, columns, chosen)
        chunks = cls._empty(rows, columns, counts, memory)
        _sort(
            *(indptr, indices, _all(chosen), chosen is None, rows.starts, columns.starts),
            *(chunks.edge_starts, chunks.row_starts, chunks.row_ids, chunks.offsets, chunks.edges),
        )
        return chunks

    @classmethod
    def _empty(
        cls, rows: RowIntervals, columns: RowIntervals, counts: ChunkCounts, memory: MatrixPool
    ) -> EdgeChunks:
        edge_starts, row_starts = (
            np.concatenate([[0], np.cumsum(each, dtype=np.int64)]) for each in (counts.edges, counts.rows)
        )
        num_edges, num_rows = int(edge_starts[-1]), int(row_starts[-1])
        return cls(
            rows,
            columns,
            edge_starts,
            row_starts,
            memory.take((num_rows,), np.int32),
            memory.take((num_rows + counts.rows.size,), np.int32),
            memory.take((num_edges,), np.int32),
        )

    def chunk(self, row: int, column: int) -> EdgeChunk:
        """Return the edges between row interval `row` and column interval `column`, as views."""
        index = row * self.columns.num + column
        first, last = self.row_starts[index : index + 2]
        edge_first, edge_last = self.edge_starts[index : index + 2]
        return EdgeChunk(
            self.row_ids[first:last],
            self.offsets[first + index : last + index + 1],
            self.edges[edge_first:edge_last],
        )

    def transpose(self, memory: MatrixPool) -> EdgeChunks:
        """Return the transpose; edges of a row are in column order."""
        filled = np.zeros((self.columns.num, self.rows.num), np.int64)
        for i in range(self.rows.num):
            for j in range(self.columns.num):
                filled[j, i] = _count_columns(self.chunk(i, j).columns, self.columns.length(j))
        edges = np.diff(self.edge_starts).reshape(self.rows.num, self.columns.num).T
        out = self._empty(self.columns, self.rows, ChunkCounts(edges, filled), memory)
        for i in range(self.rows.num):
            for j in range(self.columns.num):
                source, target = self.chunk(i, j), out.chunk(j, i)
                _transpose(
                    *(source.rows, source.starts, source.columns, self.columns.length(j)),
                    *(target.rows, target.starts, target.columns),
                )
        return out

    def release(self, memory: MatrixPool) -> None:
        """Return the arrays to the pool."""
        for array in (self.row_ids, self.offsets, self.edges):
            memory.release(array)


def _all(chosen: Array | None) -> Array:
    return np.empty(0, np.int64) if chosen is None else chosen


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _count(indptr, indices, chosen, is_all, row_starts, column_starts, edges, filled):
    """Count edges and rows with edges per chunk."""
    seen = np.full(len(column_starts) - 1, -1, np.int64)
    for i in range(len(row_starts) - 1):
        for r in range(row_starts[i], row_starts[i + 1]):
            v = r if is_all else chosen[r]
            k = 0
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                if u < column_starts[k]:
                    k = 0  # Rows are usually sorted, but need not be.
                while u >= column_starts[k + 1]:
                    k += 1
                edges[i, k] += 1
                if seen[k] != r:
                    seen[k] = r
                    filled[i, k] += 1


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _sort(
    indptr,
    indices,
    chosen,
    is_all,
    row_starts,
    column_starts,
    chunk_edges,
    chunk_rows,
    row_ids,
    offsets,
    edges,
):
    """Sort the edges into chunks, in the order of the rows."""
    num = len(column_starts) - 1
    edge_at, row_at = np.empty(num, np.int64), np.empty(num, np.int64)
    seen = np.full(num, -1, np.int64)
    for i in range(len(row_starts) - 1):
        for k in range(num):
            edge_at[k], row_at[k] = chunk_edges[i * num + k], chunk_rows[i * num + k]
        for r in range(row_starts[i], row_starts[i + 1]):
            v = r if is_all else chosen[r]
            k = 0
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                if u < column_starts[k]:
                    k = 0
                while u >= column_starts[k + 1]:
                    k += 1
                if seen[k] != r:
                    seen[k] = r
                    row_ids[row_at[k]] = r - row_starts[i]
                    offsets[row_at[k] + i * num + k] = edge_at[k] - chunk_edges[i * num + k]
                    row_at[k] += 1
                edges[edge_at[k]] = u - column_starts[k]
                edge_at[k] += 1
        for k in range(num):
            offsets[row_at[k] + i * num + k] = edge_at[k] - chunk_edges[i * num + k]


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _count_columns(columns, length):
    """Count the columns that have edges."""
    seen = np.zeros(length, np.bool_)
    for e in range(len(columns)):
        seen[columns[e]] = True
    return seen.sum()


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _transpose(rows, starts, columns, length, out_rows, out_starts, out_columns):
    """Transpose a chunk; edges of a column are in row order."""
    at = np.zeros(length + 1, np.int64)
    for e in range(len(columns)):
        at[columns[e] + 1] += 1
    filled = 0
    for c in range(length):
        if at[c + 1] > 0:
            out_rows[filled] = c
            out_starts[filled] = at[c]
            filled += 1
        at[c + 1] += at[c]
    out_starts[filled] = at[length]
    for n in range(len(rows)):
        for e in range(starts[n], starts[n + 1]):
            c = columns[e]
            out_columns[at[c]] = rows[n]
            at[c] += 1
