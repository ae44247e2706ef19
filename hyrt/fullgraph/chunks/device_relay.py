"""Row uploads to devices from the host, or from the previous device of a relay (NeuGraph, section 3.3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.chunks.chunk_kernels import ChunkKernels, PeerDeviceError
from hyrt.fullgraph.matrix_pool import MatrixPool

Array = NDArray[Any]


class RowReader:
    """Uploads rows to one device, and counts filtered uploads.

    Useful rows of a chunk, at most `max_values` numbers, are gathered into two alternating buffers: one is
    filled while the other is copied.
    """

    def __init__(self, max_values: int, memory: MatrixPool) -> None:
        self._buffers = [memory.take((max_values,), np.float32) for _ in range(2)] if max_values else []
        self.reads = 0
        self.read_bytes = 0
        self.filtered = 0
        self.spared_bytes = 0
        self.filter_s = 0.0
        """Since `reset`: number and bytes of uploads, number filtered, bytes saved, and filter time."""
        self.handed_bytes = 0
        """Bytes that other devices forwarded since `reset`."""

    def reset(self) -> None:
        """Reset the counters."""
        self.reads = self.read_bytes = self.filtered = self.spared_bytes = self.handed_bytes = 0
        self.filter_s = 0.0

    def read(self, kernels: ChunkKernels, rows: Array, selected: Array | None) -> None:
        """Upload the `rows` [n, width] of an interval to the buffer `read`, or only the rows `selected` [m].

        If all rows are uploaded, they must be float32.
        """
        self.reads += 1
        if selected is None:
            self.read_bytes += rows.nbytes
            kernels.put("read", rows)
            return
        width = rows.shape[1]
        buffer = self._buffers.pop(0)
        self._buffers.append(buffer)
        kernels.wait_for_array(rows)
        kernels.wait_for_array(buffer)
        started = time.perf_counter()
        out = buffer[: len(selected) * width].reshape(len(selected), width)
        if rows.dtype == out.dtype:
            # In any other mode, numpy gathers into a temporary array first.
            np.take(rows, selected, axis=0, out=out, mode="clip")
        else:
            out[:] = rows[selected]
        self.filter_s += time.perf_counter() - started
        self.filtered += 1
        self.read_bytes += out.nbytes
        self.spared_bytes += (len(rows) - len(selected)) * width * out.itemsize
        kernels.put("read", out)


ChunkIndex = tuple[int, int]
"""Chunk index: the accumulated interval, which one device computes, and the interval that is read."""


def build_relays(count: int, can_access: Callable[[int, int], bool]) -> tuple[tuple[int, ...], ...]:
    """Group `count` devices into relays, in their order, and return the devices of each relay.

    `can_access` returns whether the first of two devices can copy directly from the memory of the second. A
    device that can access no other forms a relay alone.
    """
    relays: list[list[int]] = []
    for device in range(count):
        chain = next((relay for relay in relays if can_access(device, relay[-1])), None)
        if chain is None:
            relays.append([device])
        else:
            chain.append(device)
    return tuple(map(tuple, relays))


def plan_forwarding(
    devices: Sequence[int],
    columns: Sequence[Sequence[int]],
    reads: Sequence[int],
    needs: Callable[[int, int], bool],
) -> dict[ChunkIndex, ChunkIndex]:
    """Choose the chunks whose rows are copied from another device, and map each one to its source chunk.

    The devices of a relay compute their first columns at the same time, then their second ones. Of the
    devices that need an interval, the first copies it from the host, and each other one from its predecessor.
    `columns` are the accumulated intervals of each device, and `reads` the intervals that are read for each
    column; `needs` returns whether a column reads all rows of an interval.
    """
    sources: dict[ChunkIndex, ChunkIndex] = {}
    for round_columns in zip_longest(*(columns[device] for device in devices)):
        present = [column for column in round_columns if column is not None]
        for read in reads:
            chunks = [(column, read) for column in present if needs(column, read)]
            sources.update((later, earlier) for earlier, later in pairwise(chunks))
    return sources


@dataclass(slots=True)
class DeviceRelay:
    """Rendezvous of devices that exchange rows in a pass; one per pass.

    All devices read in the same order, and none waits for a later read. A deadlock is therefore possible only
    if a device fails, which `part` reports to the others.
    """

    sources: Mapping[ChunkIndex, ChunkIndex] = field(default_factory=dict)
    """Result of `plan_forwarding`."""
    _offers: dict[ChunkIndex, Any] = field(default_factory=dict)
    _taken: dict[ChunkIndex, Any] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_broken: bool = False

    @contextmanager
    def part(self) -> Iterator[None]:
        """Run a device's part; if it fails, wake the devices that wait for it."""
        try:
            yield
        except BaseException:
            with self._changed:
                self._is_broken = True
                self._changed.notify_all()
            raise

    def publish(self, chunk: ChunkIndex, rows: Any) -> None:
        """Publish the rows that were read for a chunk."""
        self._put(self._offers, chunk, rows)

    def wait_for_rows(self, chunk: ChunkIndex) -> Any:
        """Wait for the rows that another device reads for a chunk, and return them."""
        return self._wait(self._offers, chunk)

    def record_copy(self, chunk: ChunkIndex, end: Any) -> None:
        """Record the event for the end of the copy of published rows."""
        self._put(self._taken, chunk, end)

    def wait_for_copy(self, chunk: ChunkIndex) -> Any:
        """Wait until the copy of published rows has started, and return the event for its end."""
        return self._wait(self._taken, chunk)

    def _put(self, board: dict[ChunkIndex, Any], place: ChunkIndex, value: Any) -> None:
        with self._changed:
            board[place] = value
            self._changed.notify_all()

    def _wait(self, board: dict[ChunkIndex, Any], place: ChunkIndex) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: place in board or self._is_broken)
            if place not in board:
                raise PeerDeviceError("another device of the relay has failed")
            return board.pop(place)


class RelayedRows:
    """Rows of one device: from the host or from its predecessor, and published for its successor.

    `reader` counts forwarded bytes.
    """

    def __init__(self, relay: DeviceRelay, kernels: ChunkKernels, reader: RowReader) -> None:
        self._chain = relay
        self._kernels = kernels
        self._reader = reader
        self._publishers = frozenset(relay.sources.values())
        self._offered: ChunkIndex | None = None

    def fetch(self, chunk: ChunkIndex, read: Callable[[], None], num_rows: int, width: int) -> None:
        """Bring the rows [num_rows, width] of a chunk into the device; `read` copies them from the host."""
        self.wait_until_copied()
        source = self._chain.sources.get(chunk)
        if source is None:
            read()
        else:
            rows = self._chain.wait_for_rows(source)
            self._chain.record_copy(source, self._kernels.copy_published_rows(rows, num_rows, width))
            self._reader.reads += 1
            self._reader.handed_bytes += 4 * num_rows * width
        if chunk in self._publishers:
            self._chain.publish(chunk, self._kernels.publish_rows())
            self._offered = chunk

    def wait_until_copied(self) -> None:
        """Delay writes to the device's buffer `read` until its successor has copied the rows."""
        if self._offered is not None:
            self._kernels.hold_rows(self._chain.wait_for_copy(self._offered))
            self._offered = None
