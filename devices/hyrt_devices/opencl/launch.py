"""A queue with the kernels that run on it: what one thread at a time drives."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_devices.opencl_host.profiling import Command


def ceil_div(a: int, b: int) -> int:
    """How many of b hold a."""
    return -(-a // b)


class Launcher:
    """Enqueues kernels and copies in order, and keeps their events.

    Parameters
    ----------
    context, device
        The device is named: a queue made for a context alone would use the parent of a sub-device.
    """

    def __init__(self, context: Any, device: Any) -> None:
        import pyopencl as cl

        self._cl = cl
        self._queue: Any = cl.CommandQueue(
            context, device=device, properties=cl.command_queue_properties.PROFILING_ENABLE
        )
        self._events: list[Command] = []
        self._waits: list[Any] | None = None

    def wait_for(self, events: Sequence[Any]) -> None:
        """Let the next command start after these events, of other queues."""
        self._waits = list(events) or None

    def launch(self, kernel: Any, groups: tuple[int, ...], local: tuple[int, ...], *args: Any) -> None:
        """Run a kernel over work groups; numbers become what OpenCL calls int."""
        kernel.set_args(*(np.int32(value) if isinstance(value, int) else value for value in args))
        size = tuple(g * n for g, n in zip(groups, local, strict=True))
        waits, self._waits = self._waits, None
        event = self._cl.enqueue_nd_range_kernel(self._queue, kernel, size, local, wait_for=waits)
        self._events.append((kernel, event))

    def write(self, buffer: Any, array: NDArray[Any], *, blocking: bool = False, offset: int = 0) -> Any:
        """Copy a host array to a buffer; unless blocking, it must not change before the event."""
        event = self._cl.enqueue_copy(self._queue, buffer, array, is_blocking=blocking, dst_offset=offset)
        self._events.append(("copy", event))
        return event

    def read(self, array: NDArray[Any], buffer: Any) -> None:
        """Copy a buffer to a host array, which holds it after `finish`."""
        self._events.append(("copy", self._cl.enqueue_copy(self._queue, array, buffer, is_blocking=False)))

    def flush(self) -> None:
        """Start what is enqueued."""
        self._queue.flush()

    def finish(self) -> None:
        """Wait for all."""
        self._queue.finish()

    def close(self) -> None:
        """Wait for all, and let go of the queue; idempotent, valid after the device failed."""
        queue, self._queue, self._events = self._queue, None, []
        if queue is not None:
            # What failed has been raised by the call that it failed in.
            with suppress(self._cl.Error):
                queue.finish()

    def taken(self) -> list[Command]:
        """The commands since the last call."""
        events, self._events = self._events, []
        return events
