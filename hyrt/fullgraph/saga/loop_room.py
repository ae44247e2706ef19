"""What a device offers for loops over edges whose matrices live in the host's memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from numpy.typing import DTypeLike, NDArray

from hyrt.fullgraph.chunks.chunked_step import ChunkWork
from hyrt.nn.fused.c_loops.c_printer import LoopCall
from hyrt.nn.fused.edge_loop import EdgeLoop

Array = NDArray[Any]
Held = Any
"""Memory of a device."""


class LoopRoom(Protocol):
    """A device's memory, and its queue: all calls take effect in their order."""

    name: str
    """The device's name, for messages."""
    reads_in_place: bool
    """Whether `put` copies nothing that loops only read."""

    def free_bytes(self) -> int:
        """How much loops may take, while they hold nothing."""
        ...

    def put(self, array: Array, *, writes: bool = False) -> Held:
        """Bring a C-contiguous array there, which stays as it is until `finish`. Raises DeviceOutOfMemory.

        Where loops write there, the array stays as it is nevertheless.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Held:
        """Memory for an array. Raises DeviceOutOfMemory."""
        ...

    def get(self, held: Held, out: Array) -> None:
        """Copy to a C-contiguous array, which is there after `finish`."""
        ...

    def give(self, held: Iterable[Held]) -> None:
        """Take memory back, for what comes later in the queue."""
        ...

    def num_totals(self, loop: EdgeLoop, num_rows: int) -> int:
        """How many partial sums there are of what is added up over so many rows."""
        ...

    def launch(
        self, loop: EdgeLoop, call: LoopCall, given: Mapping[str, Held], num_rows: int, first: int
    ) -> None:
        """Run a loop; see `hyrt.nn.fused.c_loops.tensor_loops.TensorLoops`."""
        ...

    def about(self, work: str) -> None:
        """What the calls that follow are about, for a trace; empty for nothing in particular."""
        ...

    def begin(self) -> None:
        """Count from here on."""
        ...

    def tell(self) -> None:
        """Hand what was run since the last call to who traces the device; called after `finish`."""
        ...

    def work(self) -> ChunkWork:
        """How long it copied and computed from `begin` to the last `tell`; loops count what they copy."""
        ...

    def errors(self) -> AbstractContextManager[None]:
        """A context in which errors of the driver that mean a lack of memory are DeviceOutOfMemory."""
        ...

    def finish(self) -> None:
        """Until all is done."""
        ...

    def release(self) -> None:
        """Take all memory back, once nothing uses it; idempotent."""
        ...
