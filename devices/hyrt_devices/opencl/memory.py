"""Device memory: pooled buffers within a limit, and host arrays read in place."""

from __future__ import annotations

import bisect
import threading
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DeviceOutOfMemory

# Kernels may read this far beyond the end of a buffer of ours.
_SLACK_BYTES = 256
_PAGE_BYTES = 4096


def readable(size_bytes: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.4g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.4g} GiB"


class DeviceMemory:
    """Hands out buffers over recycled memory; any thread may take and give back.

    The limit is kept before a buffer is made: some implementations promise more memory than there is.

    Parameters
    ----------
    context
        The OpenCL context.
    name
        Of the device, for messages.
    limit_bytes
        Of all buffers together.
    largest_bytes
        Of one buffer.
    """

    def __init__(self, context: Any, name: str, limit_bytes: int, largest_bytes: int) -> None:
        self._context = context
        self._name = name
        self._limit_bytes = limit_bytes
        self._largest_bytes = largest_bytes
        self._lock = threading.Lock()
        self._sizes: list[int] = []
        self._free: list[Any] = []
        self._lent: dict[int, Any] = {}
        self.allocated_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Memory of the buffers in use."""
        with self._lock:
            return self.allocated_bytes - sum(self._sizes)

    def take(self, size_bytes: int) -> Any:
        """A buffer of at least `size_bytes`, uninitialised.

        Raises
        ------
        DeviceOutOfMemory
            If it does not fit; nothing was taken.
        """
        import pyopencl as cl

        room = size_bytes + _SLACK_BYTES
        with self._lock:
            at = bisect.bisect_left(self._sizes, room)
            if at < len(self._sizes) and self._sizes[at] <= 2 * room + _PAGE_BYTES:
                del self._sizes[at]
                buffer = self._free.pop(at)
            else:
                # A little larger than asked for: the sizes of successive steps differ.
                wanted = -(-(room + room // 8) // _PAGE_BYTES) * _PAGE_BYTES
                wanted = max(room, min(wanted, self._largest_bytes))
                if self.allocated_bytes + wanted > self._limit_bytes:
                    self._drop_free()
                    wanted = max(room, min(wanted, self._limit_bytes - self.allocated_bytes))
                if room > self._largest_bytes or self.allocated_bytes + room > self._limit_bytes:
                    raise self._exhausted(room)
                try:
                    buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, wanted)
                except (cl.MemoryError, cl.RuntimeError) as error:
                    raise self._exhausted(room) from error
                self.allocated_bytes += wanted
            self._lent[id(buffer)] = buffer
            return buffer

    def wrap(self, array: NDArray[Any]) -> Any:
        """A buffer over a host array, which the device reads in place. The array must outlive it."""
        import pyopencl as cl

        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
        return cl.Buffer(self._context, flags, hostbuf=array)

    def give(self, buffer: Any) -> None:
        """Take back a buffer of `take`."""
        with self._lock:
            if self._lent.pop(id(buffer), None) is not None:
                at = bisect.bisect_left(self._sizes, buffer.size)
                self._sizes.insert(at, buffer.size)
                self._free.insert(at, buffer)

    def close(self) -> None:
        """Free every buffer, those in use too."""
        with self._lock:
            self._drop_free()
            lent, self._lent = self._lent, {}
            for buffer in lent.values():
                buffer.release()
            self.allocated_bytes = 0

    def _drop_free(self) -> None:
        for size, buffer in zip(self._sizes, self._free, strict=True):
            buffer.release()
            self.allocated_bytes -= size
        self._sizes, self._free = [], []

    def _exhausted(self, room: int) -> DeviceOutOfMemory:
        used = self.allocated_bytes - sum(self._sizes)
        largest = f", {readable(self._largest_bytes)} in one piece" if room > self._largest_bytes else ""
        return DeviceOutOfMemory(
            f"{self._name} is out of memory: asked {readable(room)}, {readable(used)} in use of "
            f"{readable(self._limit_bytes)}{largest}"
        )


class Lease:
    """Buffers that go back together.

    Parameters
    ----------
    memory
        Where they are from.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._taken: list[Any] = []

    def take(self, size_bytes: int) -> Any:
        """A buffer of at least `size_bytes`. Raises DeviceOutOfMemory."""
        buffer = self._memory.take(size_bytes)
        self._taken.append(buffer)
        return buffer

    def floats(self, *shape: int) -> Any:
        """A buffer for float32 of a shape. Raises DeviceOutOfMemory."""
        return self.take(4 * int(np.prod(shape, dtype=np.int64)))

    def release(self) -> None:
        """Give all back; idempotent."""
        taken, self._taken = self._taken, []
        for buffer in taken:
            self._memory.give(buffer)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
