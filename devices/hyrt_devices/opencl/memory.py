"""Device memory: recycled buffers within a limit, and host arrays read in place."""

from __future__ import annotations

from collections.abc import Hashable
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_devices.opencl.launch import Launcher
from hyrt_devices.opencl_host.memory_pool import DeviceMemoryPool

SLACK_BYTES = 256
"""Kernels may read this far beyond the end of a buffer of ours."""


class DeviceMemory:
    """Hands out buffers; any thread may take and give back.

    Parameters
    ----------
    context
        The OpenCL context.
    name, limit_bytes, largest_bytes
        The parameters of `DeviceMemoryPool`.
    zero_copy
        Whether the device shares the host's memory.
    """

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
        """An uninitialised buffer of at least `size_bytes`. DeviceOutOfMemoryError leaves nothing taken.

        With `exact` it takes `SLACK_BYTES` more than asked for, and nothing else.
        """
        return self.buffers.take(size_bytes + SLACK_BYTES, exact=exact)

    def wrap(self, array: NDArray[Any]) -> Any:
        """A buffer over a host array, which the device reads in place. The array must outlive it."""
        import pyopencl as cl

        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
        return cl.Buffer(self._context, flags, hostbuf=array)

    def give(self, buffer: Any) -> None:
        """Take back a buffer of `take`."""
        self.buffers.give(buffer)


class Lease:
    """Buffers that go back together.

    Parameters
    ----------
    memory
        The memory that the pieces are from.
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._taken: list[Any] = []

    def take(self, size_bytes: int, *, exact: bool = False) -> Any:
        """A buffer of at least `size_bytes`, as `DeviceMemory.take`. Raises DeviceOutOfMemoryError."""
        buffer = self._memory.take(size_bytes, exact=exact)
        self._taken.append(buffer)
        return buffer

    def floats(self, *shape: int) -> Any:
        """A buffer for float32 of a shape. Raises DeviceOutOfMemoryError."""
        return self.take(4 * int(np.prod(shape, dtype=np.int64)))

    def place(self, queue: Launcher, array: NDArray[Any]) -> Any:
        """A buffer with a C-contiguous array: read in place by a device in the host's memory, else copied.

        The array must stay as it is until the buffer is not read any more. Raises DeviceOutOfMemoryError.
        """
        if array.size and self._memory.zero_copy:
            return self._memory.wrap(array)
        buffer = self.take(array.nbytes)
        if array.size:
            queue.write(buffer, array)
        return buffer

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
