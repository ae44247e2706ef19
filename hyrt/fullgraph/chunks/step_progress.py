"""Progress of a chunked step through its column passes, between which it can be interrupted and resumed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from numpy.typing import NDArray

from hyrt.errors import StepInterrupted
from hyrt.fullgraph.chunks.chunk_kernels import ChunkKernels, DeviceGroup
from hyrt.fullgraph.step_checkpoint import LossTotals, StepCheckpoint, StepCheckpointer, StepPosition

Array = NDArray[Any]

# Enqueue this many columns ahead: the device stays busy, and a stopped run loses little work.
_AHEAD = 1


class DeviceSync(Protocol):
    """Synchronization of devices in a pass."""

    def part(self) -> AbstractContextManager[None]:
        """Return a context for a device's work."""
        ...


class StepProgress:
    """Counts the columns of a step's passes, and saves checkpoints.

    Devices compute their first columns at the same time, then their second ones. Devices may wait for each
    other within such a round, but never for a later one. All devices therefore pause after the last round
    that any device has started. Without a `checkpointer`, devices do not wait between columns.

    `plan` are the inputs that determine passes and columns, as plain JSON values. The step resumes from
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
        """Functions by target interval that return its loss and counts once all work is done."""
        self.matrices: dict[str, Array] = {}
        """Host matrices that later passes need."""
        self._begin_pass()

    def _begin_pass(self) -> None:
        self._done = [0] * self._num_members
        self._begin_part()

    def _begin_part(self) -> None:
        """Continue after the completed columns."""
        # Last column that each device has started, and the last one that any may start.
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
        """Run a pass, or the rest of it; the passes of a step are always in the same order.

        `columns` are the columns of each device, in its order. `make_sync` creates the synchronization of the
        devices, and is called again after a pause. `work` is called per device with its index, its kernels,
        its columns and the synchronization. Unless `by_column`, the pass can only pause at its end. Raises
        StepInterrupted, after saving the completed part, if the step must stop.
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
            # Complete at least one column after a pause, even if a checkpoint is due.
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
    """Return its argument (the restored loss of an interval)."""
    return totals
