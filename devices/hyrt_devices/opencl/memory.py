"""Device memory: reused buffers within a limit, and host arrays that are read in place."""

from __future__ import annotations

from collections.abc import Hashable
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_devices.opencl.launch import Launcher
from hyrt_devices.opencl_host.memory_pool import DeviceMemoryPool

SLACK_BYTES = 256
"""Bytes that kernels may read beyond the end of an allocated buffer."""


class DeviceMemory:
    """Thread-safe allocator of buffers; with `zero_copy`, the device shares the host's memory."""

    def __init__(
        self, context: Any, name: str, limit_bytes: int, largest_bytes: int, *, zero_copy: bool = False
    ) -> None:
        self._context = context
        self.zero_copy = zero_copy
        self.buffers: DeviceMemoryPool[Any] = DeviceMemoryPool(name, limit_bytes, largest_bytes, self._buffer)

    def _buffer(self, _: Hashable, size_bytes: int) -> Any:
        import pyopencl as cl

        try:
            return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size_bytes)
        except (cl.MemoryError, cl.RuntimeError) as error:
            raise MemoryError(str(error)) from error

    def take(self, size_bytes: int, *, exact: bool = False) -> Any:
        """Return an uninitialised buffer of `size_bytes` or more; DeviceOutOfMemoryError allocates no memory.

        With `exact` the buffer has exactly `SLACK_BYTES` more than requested.
        """
        return self.buffers.take(size_bytes + SLACK_BYTES, exact=exact)

    def wrap(self, array: NDArray[Any]) -> Any:
        """Return a buffer over a host array that the device reads in place; the array must outlive it."""
        import pyopencl as cl

        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
        return cl.Buffer(self._context, flags, hostbuf=array)

    def give(self, buffer: Any) -> None:
        """Return a buffer of `take` to the pool."""
        self.buffers.give(buffer)


class Lease:
    """Group of buffers that are released together."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._taken: list[Any] = []

    def take(self, size_bytes: int, *, exact: bool = False) -> Any:
        """Return a buffer like `DeviceMemory.take`. Raises DeviceOutOfMemoryError."""
        buffer = self._memory.take(size_bytes, exact=exact)
        self._taken.append(buffer)
        return buffer

    def floats(self, *shape: int) -> Any:
        """Return a float32 buffer of a shape. Raises DeviceOutOfMemoryError."""
        return self.take(4 * int(np.prod(shape, dtype=np.int64)))

    def place(self, queue: Launcher, array: NDArray[Any]) -> Any:
        """Return a buffer with a C-contiguous array: copied unless the device shares memory.

        The array must not change until the last read of the buffer. Raises DeviceOutOfMemoryError.
        """
        if array.size and self._memory.zero_copy:
            return self._memory.wrap(array)
        buffer = self.take(array.nbytes)
        if array.size:
            queue.write(buffer, array)
        return buffer

    def release(self) -> None:
        """Release all buffers; idempotent."""
        taken, self._taken = self._taken, []
        for buffer in taken:
            self._memory.give(buffer)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
