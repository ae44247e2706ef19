"""Interface of a device that runs edge loops on matrices in host memory."""

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
"""Device array."""


class LoopRoom(Protocol):
    """Memory and queue of a device: all calls take effect in order."""

    name: str
    """Name of the device, for messages."""
    reads_in_place: bool
    """Whether `put` copies nothing that loops only read."""

    def free_bytes(self) -> int:
        """Return the bytes that loops may take while none is allocated."""
        ...

    def put(self, array: Array, *, writes: bool = False) -> Held:
        """Upload a C-contiguous array, which must not change until `finish`. Raises DeviceOutOfMemory.

        Writes of loops to the device array never reach the host array.
        """
        ...

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Held:
        """Allocate an uninitialised array. Raises DeviceOutOfMemory."""
        ...

    def get(self, held: Held, out: Array) -> None:
        """Copy to a C-contiguous array, which is complete after `finish`."""
        ...

    def give(self, held: Iterable[Held]) -> None:
        """Release arrays for later calls in the queue."""
        ...

    def num_totals(self, loop: EdgeLoop, num_rows: int) -> int:
        """Return the number of partial sums of totals over `num_rows` rows."""
        ...

    def launch(
        self, loop: EdgeLoop, call: LoopCall, given: Mapping[str, Held], num_rows: int, first: int
    ) -> None:
        """Run a loop; see `hyrt.nn.fused.c_loops.tensor_loops.TensorLoops`."""
        ...

    def about(self, work: str) -> None:
        """Label the following calls in a trace; empty for no label."""
        ...

    def begin(self) -> None:
        """Reset the statistics."""
        ...

    def tell(self) -> None:
        """Report the work since the last call to the device's trace; call after `finish`."""
        ...

    def work(self) -> ChunkWork:
        """Return the time of copies and computation from `begin` to the last `tell`; loops count copied
        bytes.
        """
        ...

    def errors(self) -> AbstractContextManager[None]:
        """Return a context in which driver errors that mean out of memory become DeviceOutOfMemory."""
        ...

    def finish(self) -> None:
        """Wait until all calls are done."""
        ...

    def release(self) -> None:
        """Free all memory once nothing uses it; idempotent."""
        ...
