"""Command queue for copies and kernel launches, for use by one thread at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_devices.opencl_host.profiling import Command


def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(-a // b)


class Launcher:
    """In-order queue of kernels and copies, with their events.

    `device` is required because a queue that is created for a context alone would use a sub-device's parent.
    """

    def __init__(self, context: Any, device: Any) -> None:
        import pyopencl as cl

        self._cl = cl
        self._queue: Any = cl.CommandQueue(
            context, device=device, properties=cl.command_queue_properties.PROFILING_ENABLE
        )
        self._events: list[Command] = []
        # Events of copies to and from host arrays that may still be running.
        self._copying: deque[Any] = deque()
        self._waits: list[Any] | None = None
        self.last: Any = None
        """Event of the last command, or None before the first one."""
        self.about = ""
        """Trace label of the commands that follow, or "" for no label."""
        self.in_bytes = self.out_bytes = 0
        """Bytes copied to the device and from the device since the queue was created."""

    def wait_for(self, events: Sequence[Any]) -> None:
        """Make the next kernel, copy or fill of this queue wait for events of other queues."""
        self._waits = list(events) or None

    def launch(self, kernel: Any, groups: tuple[int, ...], local: tuple[int, ...], *args: Any) -> None:
        """Run a kernel with `groups` work groups of size `local`. Integers are passed as OpenCL int."""
        kernel.set_args(*(np.int32(value) if isinstance(value, int) else value for value in args))
        size = tuple(g * n for g, n in zip(groups, local, strict=True))
        event = self._cl.enqueue_nd_range_kernel(self._queue, kernel, size, local, wait_for=self._waited())
        self._note(kernel.function_name if self.about else kernel, event)

    def fill(self, buffer: Any, size_bytes: int) -> None:
        """Set the first `size_bytes` bytes of a buffer to zero; the number must be a multiple of 4."""
        zero, waits = np.zeros(1, np.int32), self._waited()
        event = self._cl.enqueue_fill_buffer(self._queue, buffer, zero, 0, size_bytes, wait_for=waits)
        self._note("fill", event)

    def write(self, buffer: Any, array: NDArray[Any], *, blocking: bool = False, offset: int = 0) -> Any:
        """Copy a host array to a buffer. Unless `blocking`, the array must not change before the event."""
        event = self._cl.enqueue_copy(
            self._queue, buffer, array, is_blocking=blocking, dst_offset=offset, wait_for=self._waited()
        )
        self.in_bytes += array.nbytes
        self._note("copy in" if self.about else "copy", event)
        self._hold(event)
        return event

    def copy(self, buffer: Any, source: Any, size_bytes: int) -> Any:
        """Copy the first bytes of `source`, a buffer of any device in the context, to `buffer`."""
        event = self._cl.enqueue_copy(
            self._queue, buffer, source, byte_count=size_bytes, wait_for=self._waited()
        )
        self._note("copy in" if self.about else "copy", event)
        return event

    def read(self, array: NDArray[Any], buffer: Any) -> Any:
        """Copy a buffer to a host array, which is complete after the returned event or after `finish`."""
        event = self._cl.enqueue_copy(self._queue, array, buffer, is_blocking=False, wait_for=self._waited())
        self.out_bytes += array.nbytes
        self._note("copy out" if self.about else "copy", event)
        self._hold(event)
        return event

    def _waited(self) -> list[Any] | None:
        waits, self._waits = self._waits, None
        return waits

    def _note(self, operation: Any, event: Any) -> None:
        self.last = event
        self._events.append((f"{operation}, {self.about}" if self.about else operation, event))

    def _hold(self, copy: Any) -> None:
        self._release()
        self._copying.append(copy)

    def _release(self) -> None:
        """Release the host arrays of completed copies: pyopencl drops references when it waits."""
        over = self._cl.command_execution_status.COMPLETE
        while self._copying and self._copying[0].command_execution_status == over:
            self._copying.popleft().wait()

    def flush(self) -> None:
        """Start all enqueued commands."""
        self._queue.flush()

    def finish(self) -> None:
        """Wait for all commands."""
        self._queue.finish()
        self._release()

    def close(self) -> None:
        """Wait for all commands and release the queue. Idempotent, and allowed after a device failure."""
        queue, self._queue, self._events, self.last = self._queue, None, [], None
        self._copying.clear()
        if queue is not None:
            # Errors have already been raised by the calls in which they occurred.
            with suppress(self._cl.Error):
                queue.finish()

    @property
    def commands(self) -> Sequence[Command]:
        """Commands since the last call of method `taken`."""
        return self._events

    def taken(self) -> list[Command]:
        """Return the commands since the last call of this method."""
        events, self._events = self._events, []
        self._copying.clear()
        return events
