"""How far a step is that devices compute in passes over columns, and how they pause between columns."""

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

# Columns that are enqueued beside the one that a device computes: it has something to do, and no more is lost
# than these when a run is stopped.
_AHEAD = 1


class PassChain(Protocol):
    """What devices tell each other in a pass."""

    def part(self) -> AbstractContextManager[None]:
        """A context in which a device does its part."""
        ...


class StepProgress:
    """Counts the columns of a step's passes, and keeps what is done where that is asked for.

    Devices compute their first columns at the same time, then their second ones, and may wait for each other
    in one such round, but not for what comes in a later one. So all pause after the last round that any of
    them has begun.

    Parameters
    ----------
    num_members
        How many devices compute.
    num_passes
        How many passes the step has.
    plan
        What its passes and columns depend on; plain values that JSON holds.
    keeper
        Keeps what is done; None keeps nothing, and then devices do not wait between columns.
    kept
        What is done already; None where nothing is.
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
        """Tells, by the number of an interval of targets, its loss and counts, once all is done."""
        self.matrices: dict[str, Array] = {}
        """What the passes to come need of those that are done: all of it lies in the host's memory."""
        self._begin_pass()

    def _begin_pass(self) -> None:
        self._done = [0] * self._num_members
        self._begin_part()

    def _begin_part(self) -> None:
        """Go on after what is done."""
        # The last column that each has begun, and the last one that any may begin.
        self._begun = [done - 1 for done in self._done]
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
        """Do a pass, or what is left of it; the passes of a step come in the same order each time.

        Parameters
        ----------
        together
            The devices.
        columns
            Those of each device, in its order.
        begin
            Makes what devices tell each other, anew after a pause.
        part
            What a device does: with its number, its kernels, its columns and what `begin` made.
        by_column
            Whether columns are complete one after the other; else it pauses at the end alone.

        Raises
        ------
        StepStopped
            If the step is to end; what is done is kept.
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
        """The columns of a device that are left, as long as it may go on."""
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
            # After a pause at least one column is done, whatever is asked for.
            if self._last is None and max(self._begun) >= self._first and keeper.is_due:
                self._last = max(self._begun)
            if self._last is not None and k > self._last:
                return False
            self._begun[member] = k
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
        """Go on where a process before was."""
        position = kept.position
        for name, matrix in self.matrices.items():
            kept.fill(name, matrix)
        self._done = list(position.columns)
        self._begin_part()
        self.losses.update({q: partial(_told, told) for q, told in position.losses.items()})

        def write(member: int, kernels: ChunkKernels) -> None:
            kernels.set_sums(position.sums[member])

        together.run(write)


def _told(told: Told) -> Told:
    """What an earlier process was told."""
    return told
