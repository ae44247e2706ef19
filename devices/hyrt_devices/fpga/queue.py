"""A queue whose commands wait for the events they are given, and for nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any


class Queue:
    """Enqueues migrations and launches on one device; one thread at a time drives it.

    Out of order: what must come before a command is in its wait list. Markers, barriers and fills, which XRT
    refuses through pyopencl, are not used. A command's buffers are kept until it is over: neither OpenCL's
    kernel objects nor pyopencl's keep them.

    Parameters
    ----------
    context, device
        The device is named: a queue made for a context alone would use the parent of a sub-device.
    """

    def __init__(self, context: Any, device: Any) -> None:
        import pyopencl as cl

        self._cl = cl
        wanted: Any = cl.command_queue_properties
        properties = wanted.PROFILING_ENABLE | wanted.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self._queue: Any = cl.CommandQueue(context, device=device, properties=properties)
        self._kept: list[tuple[Any, Any]] = []

    def to_device(self, buffers: Sequence[Any]) -> Any:
        """Bring what the host wrote in buffers to the device; returns the event."""
        return self._migrate(buffers, 0)

    def reserve(self, buffers: Sequence[Any]) -> Any:
        """Make a place on the device for buffers that it only writes; returns the event."""
        return self._migrate(buffers, self._cl.mem_migration_flags.CONTENT_UNDEFINED)

    def to_host(self, buffers: Sequence[Any], after: Sequence[Any]) -> Any:
        """Bring what the device wrote to the host; returns the event."""
        return self._migrate(buffers, self._cl.mem_migration_flags.HOST, after)

    def _migrate(self, buffers: Sequence[Any], flags: int, after: Sequence[Any] = ()) -> Any:
        event = self._cl.enqueue_migrate_mem_objects(
            self._queue, list(buffers), flags, wait_for=list(after) or None
        )
        return self._keep(event, (list(buffers), list(after)))

    def launch(self, kernel: Any, buffers: Sequence[Any], after: Sequence[Any]) -> Any:
        """Run a kernel, its first arguments these buffers, once; returns the event."""
        for position, buffer in enumerate(buffers):
            kernel.set_arg(position, buffer)
        event = self._cl.enqueue_nd_range_kernel(
            self._queue, kernel, (1,), (1,), wait_for=list(after) or None
        )
        return self._keep(event, (kernel, list(buffers), list(after)))

    def _keep(self, event: Any, objects: Any) -> Any:
        complete = self._cl.command_execution_status.COMPLETE
        self._kept = [kept for kept in self._kept if kept[0].command_execution_status > complete]
        self._kept.append((event, objects))
        return event

    def flush(self) -> None:
        """Start what is enqueued."""
        self._queue.flush()

    def wait(self, events: Sequence[Any]) -> None:
        """Wait until events are over.

        Raises
        ------
        pyopencl.Error
            If a command failed.
        """
        if not events:
            return
        self._queue.flush()
        self._cl.wait_for_events(list(events))
        for event in events:
            status = event.command_execution_status
            if status < 0:
                # Some implementations wait without a word for what has failed.
                raise self._cl.RuntimeError(f"a command ended with status {status}")

    def settle(self) -> None:
        """Wait for all, whether it failed or not; nothing is kept then."""
        kept, self._kept = self._kept, []
        if kept:
            with suppress(self._cl.Error):
                self._queue.flush()
        for event, _ in kept:
            # What failed has been raised by the call that it failed in.
            with suppress(self._cl.Error):
                event.wait()

    def close(self) -> None:
        """Wait for all, and let go of the queue; idempotent, valid after the device failed."""
        if self._queue is not None:
            self.settle()
            self._queue = None


def is_over(event: Any) -> bool:
    """Whether a command has ended well: only then it has times."""
    import pyopencl as cl

    return bool(event.command_execution_status == cl.command_execution_status.COMPLETE)
