"""Buffers and command queues for chunks on an OpenCL device."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from numpy.typing import NDArray

from hyrt.fullgraph.chunk_grid import BufferSizes, ChunkSizes, uses_dropout
from hyrt.fullgraph.chunk_stats import ChunkStats
from hyrt_devices.opencl.launch import Launcher, ceil_div
from hyrt_devices.opencl.matmul_kernels import parts_shape
from hyrt_devices.opencl.memory import SLACK_BYTES, DeviceMemory, Lease
from hyrt_devices.opencl.programs import Tuning
from hyrt_devices.opencl.replica import Replica
from hyrt_devices.opencl_host.profiling import Command, spans


@dataclass(slots=True)
class ChunkSlot:
    """Buffers of one chunk, with events of commands that may still use the buffers."""

    buffers: tuple[Any, ...]
    filled: Any = None
    """Event of the copy to the buffers, or None once the compute queue waits for it."""
    used: Any = None
    """Event of the last kernel that used the buffers."""
    drained: Any = None
    """Event of the copy from the buffers, or None once a queue waits for it."""
    taken: list[Any] = field(default_factory=list)
    """Events of the copies that other devices make from the buffers; empty once a queue waits for these."""


class ChunkQueues:
    """Queues for copies in, computations and copies out, which events synchronize.

    `copy_in` and `copy_out` are equal to `compute` if copies do not overlap with kernels.
    """

    def __init__(self, compute: Launcher, copy_in: Launcher, copy_out: Launcher) -> None:
        self.compute = compute
        self._in = copy_in
        self._out = copy_out
        self._all = list(dict.fromkeys((copy_in, compute, copy_out)))
        # Events of copies to host arrays, by address. A command that reads such an array waits for the event.
        self._downloads: dict[int, Any] = {}
        # Events of copies from host arrays, by address: the host waits for the event before it writes.
        self._uploads: dict[int, Any] = {}
        # Number of commands, bytes in and bytes out of each queue at the start of the step.
        self._step_starts = [(0, 0, 0) for _ in self._all]

    def begin(self) -> None:
        """Start a step. All earlier commands must have completed."""
        self._downloads.clear()
        self._uploads.clear()
        self._step_starts = [(len(each.commands), each.in_bytes, each.out_bytes) for each in self._all]

    def name(self, about: str) -> None:
        """Set the trace label of the commands that follow."""
        for each in self._all:
            each.about = about

    def fill(self, slot: ChunkSlot, *arrays: NDArray[Any] | None) -> None:
        """Copy arrays to a slot's buffers once these are idle. None leaves a buffer unchanged."""
        got = [self._downloads.get(array.ctypes.data) for array in arrays if array is not None]
        self._after(self._in, slot.used, slot.drained, *got, others=slot.taken)
        slot.drained, slot.taken = None, []
        for buffer, array in zip(slot.buffers, arrays, strict=True):
            if array is not None:
                slot.filled = self._uploads[array.ctypes.data] = self._in.write(buffer, array)

    def fill_from(self, slot: ChunkSlot, buffer: Any, filled: Any, size_bytes: int) -> Any:
        """Copy another device's buffer to a slot's first one after event `filled`, and return the event."""
        self._after(self._in, slot.used, slot.drained, others=[filled, *slot.taken])
        slot.drained, slot.taken = None, []
        slot.filled = self._in.copy(slot.buffers[0], buffer, size_bytes)
        # Flush now: the other device waits for this event, which cannot complete before the copy is flushed.
        self._in.flush()
        return slot.filled

    def flush(self) -> None:
        """Start all enqueued commands."""
        for each in self._all:
            each.flush()

    def settle(self, array: NDArray[Any]) -> None:
        """Wait until copies to and from a host array have completed."""
        for copies in (self._downloads, self._uploads):
            event = copies.pop(array.ctypes.data, None)
            if event is not None:
                self.flush()
                event.wait()

    def before(self, *slots: ChunkSlot) -> None:
        """Make the next command of queue `compute` wait for copies to and from the slots that it will use."""
        copies = [event for slot in slots for event in (slot.filled, slot.drained)]
        self._after(self.compute, *copies, others=[event for slot in slots for event in slot.taken])
        for slot in slots:
            slot.filled, slot.drained, slot.taken = None, None, []

    def after(self, *slots: ChunkSlot) -> None:
        """Record that the last command of queue `compute` uses the slots."""
        for slot in slots:
            slot.used = self.compute.last

    def drain(self, slot: ChunkSlot, buffer: Any, array: NDArray[Any]) -> None:
        """Copy a slot's buffer to a host array after all kernels enqueued so far."""
        self._after(self._out, self.compute.last, slot.filled)
        self._downloads[array.ctypes.data] = slot.drained = self._out.read(array, buffer)

    def finish(self) -> None:
        """Wait for all commands."""
        for each in self._all:
            each.finish()

    def taken(self) -> list[Command]:
        """Return the commands since the last call of this method, queue by queue."""
        return [command for each in self._all for command in each.taken()]

    def work(self) -> ChunkStats:
        """Return the statistics of the commands since `begin`, which must have completed."""
        copied: list[tuple[float, float]] = []
        computed: list[tuple[float, float]] = []
        in_bytes = out_bytes = 0
        for queue, (first, ins, outs) in zip(self._all, self._step_starts, strict=True):
            in_bytes, out_bytes = in_bytes + queue.in_bytes - ins, out_bytes + queue.out_bytes - outs
            for name, begin, end in spans(queue.commands[first:]):
                (copied if name.startswith("copy ") else computed).append((begin * 1e-9, end * 1e-9))
        return ChunkStats.from_spans(in_bytes, out_bytes, copied, computed)

    def _after(self, queue: Launcher, *events: Any, others: Sequence[Any] = ()) -> None:
        """Make the next command of a queue wait for events of the other queues, if there are several queues.

        It always waits for `others`, which are events of other devices.
        """
        waits = [] if len(self._all) == 1 else [event for event in events if event is not None]
        waits += others
        if not waits:
            return
        for each in self._all:
            if each is not queue:
                each.flush()
        queue.wait_for(waits)


_FLOAT, _INT, _LONG = 4, 4, 8
_SEVERAL = ("read", "results", "rows", "starts", "columns", "row_scale", "column_scale")


@dataclass(frozen=True, slots=True)
class ChunkBuffers:
    """Buffers by purpose, with the sizes of the largest chunk. Streamed data has several buffers."""

    read: tuple[Any, ...]
    """Source rows of a gather, gathered rows in a layer's backward pass, or gradients of scores."""
    accumulated: Any
    """Rows in which sums are accumulated."""
    results: tuple[Any, ...]
    """Result of each product of a layer, or the gradient of its input in the backward pass."""
    rows: tuple[Any, ...]
    starts: tuple[Any, ...]
    columns: tuple[Any, ...]
    """`rows`, `starts` and `columns` are the edges of a chunk."""
    row_scale: tuple[Any, ...]
    column_scale: tuple[Any, ...]
    """`row_scale` and `column_scale` are the scales of the edges' end points."""
    vertices: Any
    """Vertex ids of an interval, which determine dropout masks; None without dropout."""
    parts: Any
    """Partial sums of a weight gradient."""
    labels: Any
    weights: Any
    """`labels` and `weights` belong to the targets of an interval."""
    losses: Any
    """Partial sums of losses and counts."""

    @classmethod
    def take(cls, lease: Lease, sizes: dict[str, list[int]]) -> ChunkBuffers:
        """Allocate buffers with the sizes that `buffer_sizes` returns. Raises DeviceOutOfMemoryError."""
        taken = {name: [lease.take(size, exact=True) for size in each] for name, each in sizes.items()}
        several = {name: tuple(pieces) for name, pieces in taken.items() if name in _SEVERAL}
        one: dict[str, Any] = {
            name: pieces[0] if pieces else None for name, pieces in taken.items() if name not in _SEVERAL
        }
        return cls(**several, **one)


def buffer_sizes(
    replica: Replica, tuning: Tuning, chunks: ChunkSizes, in_flight: int
) -> dict[str, list[int]]:
    """Return the bytes of each buffer for chunks of these sizes, without `SLACK_BYTES`."""
    model = replica.model
    places = BufferSizes.from_model(model, chunks)
    last, parts = len(model.layers) - 1, 0
    for i, products in enumerate(replica.products):
        rows = chunks.targets if i == last else chunks.vertices
        parts = max(parts, *(prod(parts_shape(tuning, each.shape, rows)) for each in products), 0)
    return {
        "read": [_FLOAT * places.read] * in_flight,
        "accumulated": [_FLOAT * places.accumulated],
        "results": [_FLOAT * each for each in places.results],
        "rows": [_INT * places.edge_rows] * in_flight,
        "starts": [_INT * (places.edge_rows + 1)] * in_flight,
        "columns": [_INT * places.edges] * in_flight,
        "row_scale": [_FLOAT * places.vertices] * in_flight,
        "column_scale": [_FLOAT * places.vertices] * in_flight,
        "vertices": [_LONG * places.vertices] if uses_dropout(model) else [],
        "parts": [_FLOAT * parts],
        "labels": [_LONG * chunks.targets],
        "weights": [_FLOAT * chunks.targets],
        "losses": [2 * _FLOAT * ceil_div(chunks.targets, tuning.grain)],
    }


def needed_bytes(
    replica: Replica, tuning: Tuning, memory: DeviceMemory, chunks: ChunkSizes, in_flight: int
) -> int:
    """Return the total bytes of all buffers, or `sys.maxsize` if one is too large to allocate."""
    sizes = buffer_sizes(replica, tuning, chunks, in_flight)
    pieces = [size + SLACK_BYTES for each in sizes.values() for size in each]
    return sys.maxsize if max(pieces) > memory.buffers.largest_bytes else sum(pieces)
