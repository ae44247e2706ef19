"""Devices and host threads that run edge loops, and the choice of a chunk grid that fits their memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hyrt.fullgraph.chunk_grid import (
    ChunkCounts,
    EdgeChunks,
    NoFeasibleSizeError,
    count_chunks,
    max_intervals,
    no_grid_error,
    smallest_feasible,
)
from hyrt.fullgraph.chunk_stats import ChunkStats
from hyrt.fullgraph.intervals import Intervals
from hyrt.fullgraph.matrix_pool import MatrixPool
from hyrt.nn.fused.c_codegen import LoopCall
from hyrt.nn.fused.edge_loop import EdgeLoop, Edges
from hyrt.runtime.workers import Workers

TraceCallback = Callable[[str, list[tuple[str, int, int]]], None]
"""Callback with the name of a trace track and its spans: name, start and end in nanoseconds."""


class HostLoops:
    """Team of host threads that runs loops like a device; `name` is the device to which the team belongs."""

    def __init__(self, name: str, workers: Workers) -> None:
        self.name = name
        self.workers = workers
        self.on_trace: TraceCallback | None = None
        self._ran: list[tuple[float, float]] = []

    def reset_stats(self) -> None:
        self._ran.clear()

    @contextmanager
    def record_loop(self, label: str) -> Iterator[None]:
        """Record a loop over an interval of rows under a trace label."""
        started = time.perf_counter_ns()
        yield
        ended = time.perf_counter_ns()
        self._ran.append((started * 1e-9, ended * 1e-9))
        if self.on_trace is not None:
            self.on_trace("compute", [(label, started, ended)])

    def stats(self) -> ChunkStats:
        """Return the statistics since `reset_stats`. Nothing is copied on the host."""
        return ChunkStats.from_spans(0, 0, [], self._ran)


Array = NDArray[Any]
DeviceArray = Any


class LoopDevice(Protocol):
    """Memory and queue of a device. All calls take effect in order."""

    name: str
    """Device name, for messages."""
    reads_in_place: bool
    """Whether `put` avoids copies of arrays that loops only read."""

    def free_bytes(self) -> int:
        """Return the bytes that loops may use, while nothing is allocated."""
        ...

    def put(self, array: Array, *, writes: bool = False) -> DeviceArray:
        """Upload a C-contiguous array, which must not change until `finish`.

        If loops write to the device array, the host array does not change. Raises DeviceOutOfMemoryError.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> DeviceArray:
        """Allocate an uninitialized array. Raises DeviceOutOfMemoryError."""
        ...

    def get(self, held: DeviceArray, out: Array) -> None:
        """Copy a device array to a C-contiguous array, which is complete after `finish`."""
        ...

    def release_arrays(self, held: Iterable[DeviceArray]) -> None:
        """Release arrays, so that later calls in the queue can reuse their memory."""
        ...

    def num_totals(self, loop: EdgeLoop, num_rows: int) -> int:
        """Return the number of partial sums for each total over `num_rows` rows."""
        ...

    def launch(
        self, loop: EdgeLoop, call: LoopCall, arrays: Mapping[str, DeviceArray], num_rows: int, first: int
    ) -> None:
        """Run a loop; see `hyrt.nn.fused.c_codegen.TensorLoops`."""
        ...

    def set_trace_label(self, work: str) -> None:
        """Set the trace label of the calls that follow; an empty string removes it."""
        ...

    def reset_stats(self) -> None:
        """Reset the statistics."""
        ...

    def report_trace(self) -> None:
        """Add the work since the last call to the device's trace. Call this after `finish`."""
        ...

    def stats(self) -> ChunkStats:
        """Return the times from `reset_stats` to the last `report_trace`; loops count the copied bytes."""
        ...

    def translate_errors(self) -> AbstractContextManager[None]:
        """Return a context in which driver errors that mean out of memory become DeviceOutOfMemoryError."""
        ...

    def finish(self) -> None:
        """Wait until all calls are done."""
        ...

    def release(self) -> None:
        """Free all memory once it is no longer in use. May be called several times."""
        ...


@dataclass(frozen=True, slots=True)
class LoopGridSizes:
    """Maximum sizes of the chunks of a grid."""

    near: int
    """Number of accumulated rows per interval."""
    far: int
    """Number of rows that are read per interval."""
    edges: int
    """Number of edges per chunk."""


@dataclass(frozen=True)
class LoopEdges:
    """Edges of a loop, grouped by near row, without masked edges."""

    indptr: Array
    columns: Array
    chosen: Array | None
    """Near rows of the edges; None for all rows."""
    numbers: Array | None
    """Edge numbers in the order of destinations, [E]; None if they are consecutive."""
    num_near: int
    num_far: int

    @classmethod
    def from_edges(cls, edges: Edges, num_far: int) -> LoopEdges:
        """Build from the edges of a loop. `num_far` is the number of rows (or positions) of the far end."""
        indptr, columns, numbers = edges.indptr, edges.columns, edges.numbers
        if edges.positions is not None:
            places = edges.positions[columns]
            has_position = places >= 0
            counts = np.concatenate([[0], np.cumsum(has_position, dtype=np.int64)])
            indptr, columns = counts[indptr], places[has_position]
            numbers = np.flatnonzero(has_position) if numbers is None else numbers[has_position]
        num_near = len(indptr) - 1 if edges.rows is None else len(edges.rows)
        return cls(indptr, columns, edges.rows, numbers, num_near, num_far)

    @cached_property
    def num_edges(self) -> int:
        if self.chosen is None:
            return int(self.indptr[-1])
        return int((self.indptr[self.chosen + 1] - self.indptr[self.chosen]).sum(dtype=np.int64))

    def intervals(self, num: int) -> tuple[Intervals, Intervals]:
        """Return intervals of near and far rows that are not longer than `num` intervals of the
        longer end.
        """
        longest = -(-max(self.num_near, self.num_far) // num)
        near, far = (Intervals(rows, -(-rows // longest)) for rows in (self.num_near, self.num_far))
        return near, far

    def counts(self, num: int) -> ChunkCounts:
        """Count the edges per chunk for `num` intervals of the longer end."""
        return count_chunks(self.indptr, self.columns, *self.intervals(num), self.chosen)

    def chunks(self, num: int, memory: MatrixPool) -> EdgeChunks:
        """Sort the edges into chunks."""
        near, far = self.intervals(num)
        return EdgeChunks.from_edges(self.indptr, self.columns, near, far, memory, self.chosen)

    def numbers_in_chunks(self, num: int) -> Array:
        """Return the edge numbers in the order of `chunks`, [E]."""
        near, far = self.intervals(num)
        counts, edges = np.diff(self.indptr), np.arange(int(self.indptr[-1]))
        if self.chosen is not None:
            counts = counts[self.chosen]
            first = np.cumsum(counts) - counts
            edges = np.arange(self.num_edges) + np.repeat(self.indptr[self.chosen] - first, counts)
        rows = np.repeat(np.arange(self.num_near), counts)
        of_row, of_column = (
            np.searchsorted(cut.starts, ends, side="right") - 1
            for cut, ends in ((near, rows), (far, self.columns[edges]))
        )
        # A stable sort keeps the row order within a chunk.
        order = edges[np.argsort(of_row * far.num + of_column, kind="stable")]
        return order if self.numbers is None else self.numbers[order]


def min_loop_intervals(
    edges: LoopEdges,
    required_bytes: Callable[[LoopGridSizes], int],
    free_bytes: int,
    min_intervals: int,
    device: str,
) -> int:
    """Return the smallest number of intervals of the longer end whose chunks fit, at least `min_intervals`.

    `required_bytes` returns the bytes that a loop needs for chunks of given sizes, and increases with the
    sizes. `device` is the device name, for messages. Raises DeviceOutOfMemoryError if chunks of single rows,
    or of the maximum number of intervals, do not fit into `free_bytes`.
    """
    rows = max(edges.num_near, edges.num_far)
    maximum = max_intervals(rows)

    def bound(num: int) -> int:
        """Return a lower bound for any grid of `num` intervals: the bytes of a grid with equal chunks."""
        near, far = edges.intervals(num)
        return required_bytes(
            LoopGridSizes(near.longest, far.longest, -(-edges.num_edges // (near.num * far.num)))
        )

    try:
        return smallest_feasible(
            bound,
            lambda num: grid_bytes(edges, required_bytes, num),
            free_bytes,
            minimum=min_intervals,
            maximum=maximum,
        )
    except NoFeasibleSizeError as none:
        raise no_grid_error(none.needed, free_bytes, device, None if maximum == rows else maximum) from None


def grid_bytes(edges: LoopEdges, required_bytes: Callable[[LoopGridSizes], int], num: int) -> int:
    """Return the bytes that a loop needs for `num` intervals of the longer end."""
    near, far = edges.intervals(num)
    return required_bytes(LoopGridSizes(near.longest, far.longest, int(edges.counts(num).edges.max())))
