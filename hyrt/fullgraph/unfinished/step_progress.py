"""Progress of a chunked step through its passes over columns, and its pauses between columns."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from numpy.typing import NDArray

from hyrt.errors import StepStopped
from hyrt.fullgraph.chunks.chunk_kernels import ChunkKernels
from hyrt.fullgraph.chunks.together import Together
from hyrt.fullgraph.unfinished.step_keeper import KeptStep, StepKeeper, StepPosition, Told

Array = NDArray[Any]

# Columns that are enqueued ahead: the device stays busy, and a stopped run loses few.
_AHEAD = 1


class PassChain(Protocol):
    """Synchronization of devices in a pass."""

    def part(self) -> AbstractContextManager[None]:
        """Return a context for a device's work."""
        ...


class StepProgress:
    """Counts the columns of a step's passes, and saves checkpoints.

    Devices compute their first columns at the same time, then their second ones. They may wait for each other
    within such a round, but never for a later one. All devices therefore pause after the last round that any
    of them has started.

    Parameters
    ----------
    num_members
        Number of devices.
    num_passes
        Number of passes of the step.
    plan
        Inputs that determine passes and columns, as plain JSON values.
    keeper
        Writes checkpoints; None disables them, and devices do not wait between columns.
    kept
        The checkpoint to resume from, if there is one.
    """

    def __init__(
        self,
        num_members: int,
        num_passes: int,
        plan: Mapping[str, Any],
        keeper: StepKeeper | None = None,
        kept: KeptStep | None = None,
    ) -> None:
        self._keeper = keeper
        self._kept = kept
        self._plan = plan
        self._num_members = num_members
        self._num_passes = num_passes
        self._number = 0
        self._lock = threading.Lock()
        self.losses: dict[int, Callable[[], Told]] = {}
        """By target interval, a function that returns its loss and counts once all work is done."""
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
        together: Together,
        columns: Sequence[Sequence[int]],
        begin: Callable[[], PassChain],
        part: Callable[[int, ChunkKernels, Sequence[int] | Iterator[int], Any], None],
        *,
        by_column: bool = True,
    ) -> None:
        """Run a pass, or the rest of it; the passes of a step are always in the same order.

        Parameters
        ----------
        together
            The devices.
        columns
            The columns of each device, in its order.
        begin
            Creates the synchronization of the devices; called again after a pause.
        part
            Work of a device: called with its index, its kernels, its columns and the result of `begin`.
        by_column
            Whether columns are completed one by one; otherwise it can only pause at the end.

        Raises
        ------
        StepStopped
            If the step must stop; the completed part is saved.
        """
        if self._kept is not None:
            if self._number < self._kept.position.number:
                self._number += 1
                return
            self._restore(together, self._kept)
            self._kept = None
        while True:
            chain = begin()

            def do(member: int, kernels: ChunkKernels, chain: PassChain = chain) -> None:
                mine = self._columns(member, kernels, columns[member], by_column=by_column)
                part(member, kernels, mine, chain)

            together.run(do, chain.part)
            if self._keeper is not None and (self._last is not None or self._keeper.is_due):
                self._keep(together, self._keeper)
            if all(done == len(mine) for done, mine in zip(self._done, columns, strict=True)):
                break
            self._begin_part()
        self._number += 1
        self._begin_pass()

    def _columns(
        self, member: int, kernels: ChunkKernels, columns: Sequence[int], *, by_column: bool
    ) -> Sequence[int] | Iterator[int]:
        """Return the remaining columns of a device, until it must pause."""
        first = self._done[member]
        if self._keeper is None or not by_column:
            self._done[member] = len(columns)
            return columns[first:]
        return self._guarded(member, kernels, columns, self._keeper)

    def _guarded(
        self, member: int, kernels: ChunkKernels, columns: Sequence[int], keeper: StepKeeper
    ) -> Iterator[int]:
        enqueued: deque[Callable[[], None]] = deque()
        for k in range(self._done[member], len(columns)):
            if not self._may_begin(member, k, keeper):
                return
            yield columns[k]
            self._done[member] = k + 1
            enqueued.append(kernels.mark())
            if len(enqueued) > _AHEAD:
                enqueued.popleft()()
                keeper.moved()

    def _may_begin(self, member: int, k: int, keeper: StepKeeper) -> bool:
        with self._lock:
            # Complete at least one column after a pause, even if a checkpoint is due.
            if self._last is None and max(self._started) >= self._first and keeper.is_due:
                self._last = max(self._started)
            if self._last is not None and k > self._last:
                return False
            self._started[member] = k
            return True

    def _keep(self, together: Together, keeper: StepKeeper) -> None:
        sums: list[Sequence[Array]] = [()] * len(together.kernels)

        def read(member: int, kernels: ChunkKernels) -> None:
            kernels.name("")
            kernels.wait()
            sums[member] = kernels.sums()

        together.run(read)
        position = StepPosition(
            plan=self._plan,
            number=self._number,
            columns=tuple(self._done),
            num_passes=self._num_passes,
            losses={q: told() for q, told in self.losses.items()},
            sums=sums,
        )
        keeper.keep(position, self.matrices)
        if keeper.stops:
            raise StepStopped

    def _restore(self, together: Together, kept: KeptStep) -> None:
        """Resume at the position of a checkpoint."""
        position = kept.position
        for name, matrix in self.matrices.items():
            kept.fill(name, matrix)
        self._done = list(position.columns)
        self._begin_part()
        self.losses.update({q: partial(_identity, told) for q, told in position.losses.items()})

        def write(member: int, kernels: ChunkKernels) -> None:
            kernels.set_sums(position.sums[member])

        together.run(write)


def _identity(told: Told) -> Told:
    """Return its argument (the restored loss of an interval)."""
    return told
