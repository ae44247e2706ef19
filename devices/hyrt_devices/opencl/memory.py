"""Device memory: reusable buffers within a limit, and host arrays that are read in place."""

from __future__ import annotations

from collections.abc import Hashable
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_devices.opencl.launch import Launcher
from hyrt_devices.opencl_host.memory_pool import DeviceMemoryPool

SLACK_BYTES = 256
"""Number of bytes that kernels may read beyond the end of a buffer's data."""


class DeviceMemory:
    """Thread-safe allocator of buffers. With `zero_copy`, the device shares the host's memory."""

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
        """Return an uninitialised buffer of at least `size_bytes`, or raise DeviceOutOfMemoryError.

        With `exact`, the buffer has exactly `SLACK_BYTES` bytes more than requested.
        """
        return self.buffers.take(size_bytes + SLACK_BYTES, exact=exact)

    def wrap(self, array: NDArray[Any]) -> Any:
        """Return a buffer over a host array, which is read in place and must outlive the buffer."""
        import pyopencl as cl

        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
        return cl.Buffer(self._context, flags, hostbuf=array)

    def give(self, buffer: Any) -> None:
        """Put a buffer from `take` back into the pool."""
        self.buffers.give(buffer)


class Lease:
    """Group of buffers that are released together."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._taken: list[Any] = []

    def take(self, size_bytes: int, *, exact: bool = False) -> Any:
        """Return a buffer as `DeviceMemory.take` does. Raises DeviceOutOfMemoryError."""
        buffer = self._memory.take(size_bytes, exact=exact)
        self._taken.append(buffer)
        return buffer

    def floats(self, *shape: int) -> Any:
        """Return a buffer for a float32 array of a given shape. Raises DeviceOutOfMemoryError."""
        return self.take(4 * int(np.prod(shape, dtype=np.int64)))

    def place(self, queue: Launcher, array: NDArray[Any]) -> Any:
        """Return a buffer with a C-contiguous array, which is copied unless the device shares host memory.

        The array must not change until the last read of the buffer. Raises DeviceOutOfMemoryError.
        """
        if array.size and self._memory.zero_copy:
            return self._memory.wrap(array)
        buffer = self.take(array.nbytes)
        if array.size:
            queue.write(buffer, array)
        return buffer

    def release(self) -> None:
        """Release all buffers. Idempotent."""
        taken, self._taken = self._taken, []
        for buffer in taken:
            self._memory.give(buffer)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
