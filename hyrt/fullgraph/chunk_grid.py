"""Grouping of edges into chunks by the intervals of their two ends, and the smallest chunk grid that fits a
device.
"""

# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hyrt_perfmodel.chunk_schedule import MAX_PARTS
from numpy.typing import NDArray

from hyrt.errors import DeviceOutOfMemoryError
from hyrt.formatting import format_bytes
from hyrt.fullgraph.intervals import GroupedIntervals, Intervals, RowIntervals
from hyrt.fullgraph.matrix_pool import MatrixPool
from hyrt.graph.topology import Topology
from hyrt.nn.description import LayerDescription, ModelDescription
from hyrt.runtime.numba_cache import nb

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class EdgeChunk:
    """Edges between two intervals, as CSR over the rows with edges; numbers are relative to the intervals."""

    rows: NDArray[np.int32]
    """Rows with edges, in ascending order, [n]."""
    starts: NDArray[np.int32]
    """First edge of each row, [n + 1]."""
    columns: NDArray[np.int32]
    """Column of each edge, [e]."""

    @classmethod
    def diagonal(cls, rows: Array, columns: Array) -> EdgeChunk:
        """Build a chunk with one edge per pair of row and column; rows must be in ascending order."""
        starts = np.arange(len(rows) + 1, dtype=np.int32)
        return cls(rows.astype(np.int32), starts, columns.astype(np.int32))


@dataclass(frozen=True, slots=True)
class ChunkCounts:
    """Number of edges and of rows with edges in each chunk."""

    edges: NDArray[np.int64]
    """Number of edges, [row intervals, column intervals]."""
    rows: NDArray[np.int64]
    """Number of rows with edges, [row intervals, column intervals]."""


def count_chunks(
    indptr: Array, indices: Array, rows: RowIntervals, columns: RowIntervals, chosen: Array | None = None
) -> ChunkCounts:
    """Count the edges of all chunks of a CSR matrix (`indptr` [V + 1], `indices` [E]).

    `chosen` [rows.num_rows] restricts the rows to these vertices, whose positions the row intervals divide.
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
    """First edge of each chunk, [rows * columns + 1]."""
    row_starts: NDArray[np.int64]
    """First entry of each chunk in `row_ids`, [rows * columns + 1]."""
    row_ids: NDArray[np.int32]
    """Rows with edges in each chunk, concatenated over the chunks."""
    offsets: NDArray[np.int32]
    """First edge of each entry of `row_ids` within its chunk, and one more entry at the end of each chunk."""
    edges: NDArray[np.int32]
    """Column of each edge, [E]."""

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
        """Sort the edges into chunks. By default, `count_chunks` computes the `counts`."""
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
        """Return the transpose, in which the edges of a row are in column order."""
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
    """Count the edges of each chunk, and its rows with edges."""
    seen = np.full(len(column_starts) - 1, -1, np.int64)
    for i in range(len(row_starts) - 1):
        for r in range(row_starts[i], row_starts[i + 1]):
            v = r if is_all else chosen[r]
            k = 0
            for e in range(indptr[v], indptr[v + 1]):
                u = indices[e]
                if u < column_starts[k]:
                    k = 0  # Columns are usually sorted within a row, but need not be.
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
    """Count the distinct columns that have edges."""
    seen = np.zeros(length, np.bool_)
    for e in range(len(columns)):
        seen[columns[e]] = True
    return seen.sum()


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _transpose(rows, starts, columns, length, out_rows, out_starts, out_columns):
    """Transpose a chunk. The edges of a column keep their row order."""
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


# Number of candidates to try one by one before the search takes larger steps.
_ONE_BY_ONE = 32


class NoFeasibleSizeError(Exception):
    """Error if even the largest number is infeasible; `needed` is its cost, or a lower bound of it."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


def smallest_feasible(
    lower_bound: Callable[[int], int], needs: Callable[[int], int], limit: int, *, minimum: int, maximum: int
) -> int:
    """Find the smallest number from `minimum` to `maximum` whose cost `needs` is at most `limit`.

    Costs need not decrease monotonically, but `lower_bound`, which is cheap to compute, must. If many numbers
    are infeasible, the search takes growing steps and then bisects; the result is then feasible, and the next
    smaller number is not. Raises NoFeasibleSizeError if the cost of `maximum` is too high.
    """
    low, high = max(1, min(minimum, maximum)), maximum
    if lower_bound(high) > limit:
        raise NoFeasibleSizeError(lower_bound(high))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if lower_bound(middle) <= limit else (middle + 1, high)
    number, too_few, step = low, low - 1, 1
    while (needed := needs(number)) > limit:
        if number == maximum:
            raise NoFeasibleSizeError(needed)
        too_few = number
        if number - low >= _ONE_BY_ONE:
            step *= 2
        number = min(maximum, number + step)
    while number - too_few > 1:
        middle = (number + too_few) // 2
        if needs(middle) <= limit:
            number = middle
        else:
            too_few = middle
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSizes:
    """Maximum sizes of the chunks of a grid, which determine the sizes of a device's buffers."""

    vertices: int
    """Vertices per interval."""
    targets: int
    """Targets per interval."""
    edges: int
    """Edges per chunk."""
    edge_rows: int
    """Rows with edges per chunk."""


@dataclass(frozen=True, slots=True)
class ChunkGrid:
    """Intervals of vertices and targets, and the contents of the chunks."""

    vertices: Intervals
    """Intervals of the vertices that this process computes."""
    sources: RowIntervals
    """Intervals of these vertices, followed by intervals of the vertices from other processes."""
    targets: Intervals
    all_edges: ChunkCounts | None
    """Counts for all edges, by destination and source; None if no layer reads all edges in chunks."""
    target_edges: ChunkCounts
    """Counts for the edges into the targets, by destination and source."""
    sizes: ChunkSizes

    @classmethod
    def build(
        cls,
        topology: Topology,
        targets: NDArray[np.integer],
        num: int,
        *,
        has_hidden_layers: bool,
        remote: Sequence[int] = (),
    ) -> ChunkGrid:
        """Divide the vertices into `num` intervals, and the targets into intervals that are not longer.

        `targets` [n] are in ascending order. With `has_hidden_layers`, some layer is computed at all
        vertices, not only at the targets. The last vertices of the topology are remote: `remote` has the
        number of vertices that each exchange receives from other processes. Their intervals are not longer
        than the `num` intervals of the local vertices.
        """
        vertices = Intervals(topology.num_vertices - sum(remote), num)
        sources: RowIntervals = GroupedIntervals.build(vertices, remote) if remote else vertices
        target_intervals = Intervals(len(targets), -(-len(targets) // vertices.longest))
        indptr, indices = topology.indptr, topology.indices
        target_counts = count_chunks(indptr, indices, target_intervals, sources, targets)
        edges, rows = [target_counts.edges], [target_counts.rows]
        # The backward pass transposes chunks, so columns become rows.
        max_rows = min(_largest(target_counts.edges), vertices.longest)
        all_counts = None
        if has_hidden_layers:
            all_counts = count_chunks(indptr, indices, vertices, sources)
            edges.append(all_counts.edges)
            rows.append(all_counts.rows)
            max_rows = max(max_rows, min(_largest(all_counts.edges), vertices.longest))
        sizes = ChunkSizes(
            vertices=vertices.longest,
            targets=target_intervals.longest,
            edges=max(_largest(each) for each in edges),
            edge_rows=max(max_rows, *(_largest(each) for each in rows)),
        )
        return cls(vertices, sources, target_intervals, all_counts, target_counts, sizes)


def _largest(counts: NDArray[np.int64]) -> int:
    """Return the maximum over all chunks, or 0 without chunks."""
    return int(counts.max(initial=0))


def min_chunk_grid(
    topology: Topology,
    targets: NDArray[np.integer],
    needs: Callable[[ChunkSizes], int],
    budget_bytes: int,
    *,
    has_hidden_layers: bool,
    remote: Sequence[int] = (),
    min_intervals: int = 1,
    device: str = "a device",
) -> ChunkGrid:
    """Divide a graph into the fewest intervals whose chunks fit on a device (NeuGraph, section 3.1).

    If this takes many intervals, the next smaller number does not fit, but an even smaller one may, because
    the interval boundaries move.

    Parameters
    ----------
    topology
        All edges.
    targets
        [n] targets, ascending.
    needs
        Returns the bytes that a device needs for chunks of these sizes; increases with the sizes.
    budget_bytes
        Available bytes.
    has_hidden_layers
        Whether a layer is computed at all vertices, and not only at the targets.
    remote
        Number of the topology's last vertices that each exchange receives from other processes.
    min_intervals
        The smallest number of intervals to try.
    device
        Name of the device, for messages.

    Raises
    ------
    DeviceOutOfMemoryError
        If chunks of single vertices, or of the maximum number of intervals, do not fit.
    """
    num_vertices = topology.num_vertices - sum(remote)
    # Do not use in-degrees, which may include edges of other processes.
    num_edges = int((topology.indptr[targets + 1] - topology.indptr[targets]).sum(dtype=np.int64))
    max_edges = topology.num_edges if has_hidden_layers else num_edges

    def bound(num: int) -> int:
        """Return a lower bound for any grid of `num` intervals: the bytes of a grid with equal chunks."""
        longest = -(-num_vertices // num)
        of_targets = max(1, -(-len(targets) // longest))
        sources = num + sum(-(-count // longest) for count in remote)
        edges = (
            -(-max_edges // (num * sources)) if has_hidden_layers else -(-num_edges // (sources * of_targets))
        )
        rows = min(edges, 1)
        short = -(-len(targets) // of_targets)
        return needs(ChunkSizes(vertices=longest, targets=short, edges=edges, edge_rows=rows))

    grid: ChunkGrid | None = None

    def taken(num: int) -> int:
        """Return the bytes of a grid of `num` intervals, and remember the last grid that fits."""
        nonlocal grid
        candidate = ChunkGrid.build(
            topology, targets, num, has_hidden_layers=has_hidden_layers, remote=remote
        )
        needed = needs(candidate.sizes)
        if needed <= budget_bytes:
            grid = candidate
        return needed

    maximum = max_intervals(num_vertices)
    try:
        smallest_feasible(bound, taken, budget_bytes, minimum=min_intervals, maximum=maximum)
    except NoFeasibleSizeError as none:
        raise no_grid_error(
            none.needed, budget_bytes, device, None if maximum == num_vertices else maximum
        ) from None
    assert grid is not None
    return grid


def max_intervals(rows: int) -> int:
    """Return the maximum number of intervals into which `rows` rows may be divided."""
    return min(rows, MAX_PARTS)


def too_few_intervals_error(device: str, num: int, needed: int, free: int) -> DeviceOutOfMemoryError:
    """Return the error if a configured number of intervals does not fit; sizes are in bytes."""
    return DeviceOutOfMemoryError(
        f"{device}: {num} x {num} chunks need {format_bytes(needed)}, but only {format_bytes(free)} are free",
        remedy="raise fullgraph.chunks or fullgraph.device_memory, or set fullgraph.chunks=0",
    )


def no_grid_error(
    needed: int, budget: int, device: str = "a device", intervals: int | None = None
) -> DeviceOutOfMemoryError:
    """Return the error if no grid fits; `needed` and `budget` are in bytes.

    `intervals` is the maximum number of intervals, if smaller than the number of vertices.
    """
    chunks = "single-vertex chunks" if intervals is None else f"{intervals:,} x {intervals:,} chunks"
    return DeviceOutOfMemoryError(
        f"even {chunks} need {format_bytes(needed)} on {device}, but only {format_bytes(budget)} are free",
        remedy="raise fullgraph.device_memory, or lower model.hidden",
    )


@dataclass(frozen=True, slots=True)
class BufferSizes:
    """Sizes of the buffers of `ChunkKernels` and of the edges of a chunk, in values."""

    read: int
    accumulated: int
    results: tuple[int, ...]
    """Size of each product's output in a layer; the backward pass stores the gradient of its input there."""
    edge_rows: int
    """Rows per chunk of edges; there is one more offset than rows."""
    edges: int
    vertices: int
    """Vertices per interval, for the scales of both ends and for the keys of dropout masks."""
    targets: int

    @classmethod
    def from_model(cls, model: ModelDescription, chunks: ChunkSizes) -> BufferSizes:
        """Compute sizes that suffice for all chunks of all layers, if `chunks` are the maximum sizes."""
        last = len(model.layers) - 1
        read = accumulated = 0
        results = [0] * max(len(layer.products) for layer in model.layers)
        for i, layer in enumerate(model.layers):
            rows = chunks.targets if i == last else chunks.vertices
            gathered, input_columns = layer.products[0].weight.shape[1], input_width(layer)
            # The backward pass accumulates into the rows that the forward pass reads.
            read = max(read, chunks.vertices * input_columns, rows * gathered)
            accumulated = max(accumulated, rows * gathered, chunks.vertices * input_columns if i else 0)
            for p, product in enumerate(layer.products):
                outputs, inputs = product.weight.shape
                results[p] = max(results[p], rows * max(outputs, inputs if p or i else 0))
        classes = model.layers[-1].products[-1].weight.shape[0]
        return cls(
            read=max(read, chunks.targets * classes),  # This buffer also holds the gradient of the scores.
            accumulated=accumulated,
            results=tuple(results),
            # The self-loops of destinations are a chunk with one edge per row.
            edge_rows=max(chunks.edge_rows, chunks.vertices),
            edges=max(chunks.edges, chunks.vertices),
            vertices=chunks.vertices,
            targets=chunks.targets,
        )


def input_width(layer: LayerDescription) -> int:
    """Return the width of the rows that a layer gathers."""
    width: int = layer.products[0].weight.shape[1]
    return width // 2 if layer.aggregation.self_path == "concat" else width


def uses_dropout(model: ModelDescription) -> bool:
    """Return whether a model has any dropout."""
    return bool(model.input_dropout or any(layer.dropout for layer in model.layers))
