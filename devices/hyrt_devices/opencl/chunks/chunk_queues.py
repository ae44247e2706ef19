"""The queues that copy and compute chunks, and the buffers that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from hyrt.fullgraph.chunks.chunked_step import ChunkWork
from hyrt_devices.opencl.launch import Launcher
from hyrt_devices.opencl_host.profiling import Command, spans


@dataclass(slots=True)
class ChunkSlot:
    """Buffers that go together, and what other queues than the next one may still do with them."""

    buffers: tuple[Any, ...]
    filled: Any = None
    """The event of the copy that fills them, until computing waits for it."""
    used: Any = None
    """The event of what was computed with them last."""
    drained: Any = None
    """The event of the copy that reads them, until somebody waits for it."""
    taken: list[Any] = field(default_factory=list)
    """Events of copies by other devices that read them, until somebody waits for them."""


class ChunkQueues:
    """Copies in, computes and copies out: on queues that wait for each other where they must, or on one.

    Parameters
    ----------
    compute
        The queue that computes.
    copy_in, copy_out
        The queues that copy; `compute` itself where nothing is to overlap.
    """

    def __init__(self, compute: Launcher, copy_in: Launcher, copy_out: Launcher) -> None:
        self.compute = compute
        self._in = copy_in
        self._out = copy_out
        self._all = list(dict.fromkeys((copy_in, compute, copy_out)))
        # Events of the copies to host arrays, by address: what reads such an array waits for them.
        self._got: dict[int, Any] = {}
        # Of the copies from them: what writes to such an array on the host waits for them.
        self._given: dict[int, Any] = {}
        # Where a step began: commands, and bytes in and out, of each queue.
        self._begun = [(0, 0, 0) for _ in self._all]

    def begin(self) -> None:
        """Start a step: all before it is over."""
        self._got.clear()
        self._given.clear()
        self._begun = [(len(each.commands), each.in_bytes, each.out_bytes) for each in self._all]

    def name(self, about: str) -> None:
        """What the commands that follow are about, for a trace."""
        for each in self._all:
            each.about = about

    def fill(self, slot: ChunkSlot, *arrays: NDArray[Any] | None) -> None:
        """Copy arrays to the buffers of a slot, once nothing uses them; None leaves a buffer as it is."""
        got = [self._got.get(array.ctypes.data) for array in arrays if array is not None]
        self._after(self._in, slot.used, slot.drained, *got, others=slot.taken)
        slot.drained, slot.taken = None, []
        for buffer, array in zip(slot.buffers, arrays, strict=True):
            if array is not None:
                slot.filled = self._given[array.ctypes.data] = self._in.write(buffer, array)

    def fill_from(self, slot: ChunkSlot, buffer: Any, filled: Any, size_bytes: int) -> Any:
        """Copy to a slot's first buffer from another device's, once an event has filled it; tells its own."""
        self._after(self._in, slot.used, slot.drained, others=[filled, *slot.taken])
        slot.drained, slot.taken = None, []
        slot.filled = self._in.copy(slot.buffers[0], buffer, size_bytes)
        # The other device waits for it, and sees no command that waits in a queue.
        self._in.flush()
        return slot.filled

    def flush(self) -> None:
        """Start all that is enqueued."""
        for each in self._all:
            each.flush()

    def settle(self, array: NDArray[Any]) -> None:
        """Wait for the copies of a host array, to it and from it."""
        for copies in (self._got, self._given):
            event = copies.pop(array.ctypes.data, None)
            if event is not None:
                self.flush()
                event.wait()

    def before(self, *slots: ChunkSlot) -> None:
        """Let the next command of `compute` wait for the copies of slots that it is about to use."""
        own = [event for slot in slots for event in (slot.filled, slot.drained)]
        self._after(self.compute, *own, others=[event for slot in slots for event in slot.taken])
        for slot in slots:
            slot.filled, slot.drained, slot.taken = None, None, []

    def after(self, *slots: ChunkSlot) -> None:
        """Note that what `compute` was given until now has used slots."""
        for slot in slots:
            slot.used = self.compute.last

    def drain(self, slot: ChunkSlot, buffer: Any, array: NDArray[Any]) -> None:
        """Copy a buffer of a slot to a host array, after all that was computed until now."""
        self._after(self._out, self.compute.last, slot.filled)
        self._got[array.ctypes.data] = slot.drained = self._out.read(array, buffer)

    def finish(self) -> None:
        """Wait for all."""
        for each in self._all:
            each.finish()

    def taken(self) -> list[Command]:
        """The commands since the last call, queue by queue."""
        return [command for each in self._all for command in each.taken()]

    def work(self) -> ChunkWork:
        """What was done since `begin`; all of it is over."""
        copied: list[tuple[float, float]] = []
        computed: list[tuple[float, float]] = []
        in_bytes = out_bytes = 0
        for queue, (first, ins, outs) in zip(self._all, self._begun, strict=True):
            in_bytes, out_bytes = in_bytes + queue.in_bytes - ins, out_bytes + queue.out_bytes - outs
            for name, begin, end in spans(queue.commands[first:]):
                (copied if name.startswith("copy ") else computed).append((begin * 1e-9, end * 1e-9))
        return ChunkWork.of_spans(in_bytes, out_bytes, copied, computed)

    def _after(self, queue: Launcher, *events: Any, others: Sequence[Any] = ()) -> None:
        """Let the next command of a queue wait for events of the others; one queue keeps its own order.

        `others` are events of other devices, which keep none.
        """
        waits = [] if len(self._all) == 1 else [event for event in events if event is not None]
        waits += others
        if not waits:
            return
        for each in self._all:
            if each is not queue:
                each.flush()
        queue.wait_for(waits)
