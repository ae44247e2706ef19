"""Passes of a chunked step over columns on several devices: row uploads, relays between devices (NeuGraph,
section 3.3), and progress that can be interrupted and resumed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import StepInterrupted
from hyrt.fullgraph.chunk_kernels import ChunkKernels, DeviceGroup, PeerDeviceError
from hyrt.fullgraph.matrix_pool import MatrixPool
from hyrt.fullgraph.step_checkpoint import LossTotals, StepCheckpoint, StepCheckpointer, StepPosition

Array = NDArray[Any]


class RowReader:
    """Reader that uploads rows to one device, and counts uploads and filtered uploads.

    If a chunk needs only some rows, these are gathered into one of two buffers of `max_values` values each:
    one buffer is filled while the other one is copied.
    """

    def __init__(self, max_values: int, memory: MatrixPool) -> None:
        self._buffers = [memory.take((max_values,), np.float32) for _ in range(2)] if max_values else []
        self.reads = 0
        self.read_bytes = 0
        self.filtered = 0
        self.spared_bytes = 0
        self.filter_s = 0.0
        """Time to select rows, after counters of row uploads since `reset`: number, bytes, filtered, bytes
        saved.
        """
        self.handed_bytes = 0
        """Bytes that other devices have forwarded since `reset`."""

    def reset(self) -> None:
        """Reset the counters."""
        self.reads = self.read_bytes = self.filtered = self.spared_bytes = self.handed_bytes = 0
        self.filter_s = 0.0

    def read(self, kernels: ChunkKernels, rows: Array, selected: Array | None) -> None:
        """Upload the `rows` [n, width] of an interval to the buffer `read`, or only the rows `selected` [m].

        Unless `selected` is given, the rows must be float32.
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
            # In any other mode, numpy first gathers into a temporary array.
            np.take(rows, selected, axis=0, out=out, mode="clip")
        else:
            out[:] = rows[selected]
        self.filter_s += time.perf_counter() - started
        self.filtered += 1
        self.read_bytes += out.nbytes
        self.spared_bytes += (len(rows) - len(selected)) * width * out.itemsize
        kernels.put("read", out)


ChunkIndex = tuple[int, int]
"""Index of a chunk: the accumulated interval, which one device computes, and the interval that is read."""


def build_relays(count: int, can_access: Callable[[int, int], bool]) -> tuple[tuple[int, ...], ...]:
    """Group `count` devices into relays, in their order, and return the devices of each relay.

    `can_access` returns whether the first of two devices can copy directly from the memory of the second. A
    device that cannot access any other device forms a relay alone.
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

    All devices of a relay compute their first columns at the same time, then their second columns, and so on.
    Of the devices that need an interval, the first one copies it from the host, and each other one copies it
    from its predecessor. `columns` are the accumulated intervals of each device, and `reads` the intervals
    that are read for each column; `needs` returns whether a column reads all rows of an interval.
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
    """Rendezvous of the devices that forward rows to each other in one pass.

    All devices read in the same order, and no device waits for a later read. A deadlock is therefore possible
    only if a device fails, which `part` reports to the other devices.
    """

    sources: Mapping[ChunkIndex, ChunkIndex] = field(default_factory=dict)
    """Result of `plan_forwarding`."""
    _offers: dict[ChunkIndex, Any] = field(default_factory=dict)
    _taken: dict[ChunkIndex, Any] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _is_broken: bool = False

    @contextmanager
    def part(self) -> Iterator[None]:
        """Run a device's part of the pass; if it fails, wake the devices that wait for it."""
        try:
            yield
        except BaseException:
            with self._changed:
                self._is_broken = True
                self._changed.notify_all()
            raise

    def publish(self, chunk: ChunkIndex, rows: Any) -> None:
        """Publish the rows that this device has read for a chunk."""
        self._put(self._offers, chunk, rows)

    def wait_for_rows(self, chunk: ChunkIndex) -> Any:
        """Wait for the rows that another device reads for a chunk, and return them."""
        return self._wait(self._offers, chunk)

    def record_copy(self, chunk: ChunkIndex, end: Any) -> None:
        """Record the event for the end of the copy of published rows."""
        self._put(self._taken, chunk, end)

    def wait_for_copy(self, chunk: ChunkIndex) -> Any:
        """Wait until the copy of published rows has started; return the event that marks its end."""
        return self._wait(self._taken, chunk)

    def _put(self, board: dict[ChunkIndex, Any], place: ChunkIndex, value: Any) -> None:
        with self._changed:
            board[place] = value
            self._changed.notify_all()

    def _wait(self, board: dict[ChunkIndex, Any], place: ChunkIndex) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: place in board or self._is_broken)
            if place not in board:
                raise PeerDeviceError("another device of the step has failed")
            return board.pop(place)


class RelayedRows:
    """Reader of a device's rows, from the host or from its predecessor; publishes rows for its successor.

    `reader` counts forwarded bytes.
    """

    def __init__(self, relay: DeviceRelay, kernels: ChunkKernels, reader: RowReader) -> None:
        self._chain = relay
        self._kernels = kernels
        self._reader = reader
        self._publishers = frozenset(relay.sources.values())
        self._offered: ChunkIndex | None = None

    def fetch(self, chunk: ChunkIndex, read: Callable[[], None], num_rows: int, width: int) -> None:
        """Copy the rows [num_rows, width] of a chunk to the device; `read` copies them from the host."""
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
        """Delay later writes to the device's buffer `read` until its successor has copied the rows."""
        if self._offered is not None:
            self._kernels.hold_rows(self._chain.wait_for_copy(self._offered))
            self._offered = None


# Number of columns to enqueue ahead: the device stays busy, and a run that stops loses little work.
_AHEAD = 1


class DeviceSync(Protocol):
    """Synchronization of several devices in a pass."""

    def part(self) -> AbstractContextManager[None]:
        """Return a context for the work of a device."""
        ...


class StepProgress:
    """Progress of a step in passes and their columns, which is saved in checkpoints.

    All devices compute their first columns together, then their second columns, and so on. Devices may wait
    for each other within such a round, but never for a later round. All devices therefore pause after the
    last round that any device has started. Without a `checkpointer`, devices do not wait between columns.

    `plan` has the inputs that determine passes and columns, as plain JSON values. The step resumes from
    `checkpoint` if there is one.
    """

    def __init__(
        self,
        num_members: int,
        num_passes: int,
        plan: Mapping[str, Any],
        checkpointer: StepCheckpointer | None = None,
        checkpoint: StepCheckpoint | None = None,
    ) -> None:
        self._keeper = checkpointer
        self._checkpoint = checkpoint
        self._plan = plan
        self._num_members = num_members
        self._num_passes = num_passes
        self._number = 0
        self._lock = threading.Lock()
        self.losses: dict[int, Callable[[], LossTotals]] = {}
        """Functions, by target interval, that return the loss and counts once all work is done."""
        self.matrices: dict[str, Array] = {}
        """Host matrices that later passes need."""
        self._begin_pass()

    def _begin_pass(self) -> None:
        self._done = [0] * self._num_members
        self._begin_part()

    def _begin_part(self) -> None:
        """Start, or continue after the completed columns."""
        # Last column that each device has started, and the last column that any device may start.
        self._started = [done - 1 for done in self._done]
        self._first = max(self._done)
        self._last: int | None = None

    def run(
        self,
        group: DeviceGroup,
        columns: Sequence[Sequence[int]],
        make_sync: Callable[[], DeviceSync],
        work: Callable[[int, ChunkKernels, Sequence[int] | Iterator[int], Any], None],
        *,
        by_column: bool = True,
    ) -> None:
        """Run a pass, or the rest of it. The passes of a step always have the same order.

        `columns` has the columns of each device, in the order of its work. `make_sync` creates
        the synchronization of the devices, and is called again after a pause. `work` is called per device
        with its index, its kernels, its columns and the synchronization. Unless `by_column`, the pass can
        pause only at its end. Raises StepInterrupted, after saving the completed part, if the step must stop.
        """
        if self._checkpoint is not None:
            if self._number < self._checkpoint.position.number:
                self._number += 1
                return
            self._restore(group, self._checkpoint)
            self._checkpoint = None
        while True:
            chain = make_sync()

            def do(member: int, kernels: ChunkKernels, chain: DeviceSync = chain) -> None:
                mine = self._columns(member, kernels, columns[member], by_column=by_column)
                work(member, kernels, mine, chain)

            group.run(do, chain.part)
            if self._keeper is not None and (self._last is not None or self._keeper.is_due):
                self._keep(group, self._keeper)
            if all(done == len(mine) for done, mine in zip(self._done, columns, strict=True)):
                break
            self._begin_part()
        self._number += 1
        self._begin_pass()

    def _columns(
        self, member: int, kernels: ChunkKernels, columns: Sequence[int], *, by_column: bool
    ) -> Sequence[int] | Iterator[int]:
        """Return the columns that a device may compute until it must pause."""
        first = self._done[member]
        if self._keeper is None or not by_column:
            self._done[member] = len(columns)
            return columns[first:]
        return self._guarded(member, kernels, columns, self._keeper)

    def _guarded(
        self, member: int, kernels: ChunkKernels, columns: Sequence[int], keeper: StepCheckpointer
    ) -> Iterator[int]:
        enqueued: deque[Callable[[], None]] = deque()
        for k in range(self._done[member], len(columns)):
            if not self._may_begin(member, k, keeper):
                return
            yield columns[k]
            self._done[member] = k + 1
            enqueued.append(kernels.flush())
            if len(enqueued) > _AHEAD:
                enqueued.popleft()()
                keeper.report_progress()

    def _may_begin(self, member: int, k: int, keeper: StepCheckpointer) -> bool:
        with self._lock:
            # Complete at least one column after each pause, even if a checkpoint is due.
            if self._last is None and max(self._started) >= self._first and keeper.is_due:
                self._last = max(self._started)
            if self._last is not None and k > self._last:
                return False
            self._started[member] = k
            return True

    def _keep(self, together: DeviceGroup, keeper: StepCheckpointer) -> None:
        sums: list[Sequence[Array]] = [()] * len(together.kernels)

        def read(member: int, kernels: ChunkKernels) -> None:
            kernels.set_trace_label("")
            kernels.wait()
            sums[member] = kernels.gradient_sums()

        together.run(read)
        position = StepPosition(
            plan=self._plan,
            number=self._number,
            columns=tuple(self._done),
            num_passes=self._num_passes,
            losses={q: get_totals() for q, get_totals in self.losses.items()},
            sums=sums,
        )
        keeper.save(position, self.matrices)
        if keeper.should_stop:
            raise StepInterrupted

    def _restore(self, together: DeviceGroup, checkpoint: StepCheckpoint) -> None:
        """Restore the position, sums, losses and matrices of a checkpoint."""
        position = checkpoint.position
        for name, matrix in self.matrices.items():
            checkpoint.read_matrix(name, matrix)
        self._done = list(position.columns)
        self._begin_part()
        self.losses.update({q: partial(_identity, totals) for q, totals in position.losses.items()})

        def write(member: int, kernels: ChunkKernels) -> None:
            kernels.set_gradient_sums(position.sums[member])

        together.run(write)


def _identity(totals: LossTotals) -> LossTotals:
    """Return the argument, which is the restored loss of an interval."""
    return totals
