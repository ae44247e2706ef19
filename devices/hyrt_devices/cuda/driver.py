"""Streams, events, pinned memory and copies of torch devices."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from hyrt.device import Span
from hyrt.runtime.buffer_pool import BufferPool


class Driver:
    """Streams, events and memory of a CUDA or XPU device. A mark is a recorded event."""

    reads_in_place = False

    def __init__(self, kind: str, index: int) -> None:
        self.device = torch.device(kind, index)
        self._api: Any = torch.get_device_module(kind)
        # Blocking events wait without spinning, so the core is free for the CPU stages.
        self._event_options = {"blocking": True} if kind == "cuda" else {}

    def stream(self) -> Any:
        """Create a stream, whose work runs in order and concurrently with other streams."""
        return self._api.Stream(device=self.device)

    def running(self, stream: Any) -> AbstractContextManager[Any]:
        """Return a context manager in which the calling thread's operators run on the stream."""
        return cast("AbstractContextManager[Any]", self._api.stream(stream))

    def mark(self, stream: Any) -> Any:
        """Record an event after the stream's current work, including its completion time."""
        event = self._api.Event(enable_timing=True, **self._event_options)
        event.record(stream)
        return event

    def order(self, stream: Any, mark: Any) -> None:
        """Make later work on the stream wait for the mark."""
        stream.wait_event(mark)

    def wait(self, mark: Any) -> None:
        """Block the calling thread until the mark is reached."""
        mark.synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks, which must have been reached."""
        return float(start.elapsed_time(end)) / 1000

    def reaches(self, other: Driver) -> bool:
        """Return whether this device can copy directly from another device's memory (peer access)."""
        if self.device.type != "cuda" or other.device.type != "cuda" or self.device == other.device:
            return False
        return bool(self._api.can_device_access_peer(self.device, other.device))

    def pinned(self, size: int) -> torch.Tensor:
        """Allocate page-locked host memory, [size] uint8, which is copied without a staging buffer."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def free_bytes(self) -> int:
        """Return the free device memory in bytes."""
        if hasattr(self._api, "mem_get_info"):
            return int(self._api.mem_get_info(self.device)[0])
        # Before version 2.7, torch cannot query Intel's driver, so memory of other processes is not counted.
        return int(self._api.get_device_properties(self.device).total_memory) - self.used_bytes()

    def used_bytes(self) -> int:
        """Return the bytes of device memory that the tensors of this process use."""
        return int(self._api.memory_allocated(self.device))

    def limit(self, size: int | None) -> None:
        """Limit the device memory of this process to `size` bytes; None removes the limit."""
        if not hasattr(self._api, "set_per_process_memory_fraction"):
            return
        total = self._api.get_device_properties(self.device).total_memory
        fraction = 1.0 if size is None else min(1.0, size / total)
        self._api.set_per_process_memory_fraction(fraction, self.device)

    def out_of_memory(self, error: Exception) -> bool:
        """Return whether an error means that the device has run out of memory."""
        return isinstance(error, torch.OutOfMemoryError)

    def trim(self) -> None:
        """Return the allocator's cached memory to the device."""
        self._api.empty_cache()


class HostDriver(Driver):
    """Driver of the CPU, whose operations are synchronous. A mark is a time in seconds."""

    reads_in_place = True

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def stream(self) -> Any:
        return None

    def running(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self, stream: Any) -> Any:
        return time.perf_counter()

    def order(self, stream: Any, mark: Any) -> None:
        """Return immediately: host operations are synchronous."""

    def wait(self, mark: Any) -> None:
        """Return immediately: all host operations have finished."""

    def seconds(self, start: Any, end: Any) -> float:
        return float(end - start)

    def used_bytes(self) -> int:
        return psutil.Process().memory_info().rss

    def trim(self) -> None:
        """Return immediately: host memory is released when tensors are freed."""


class MpsDriver(Driver):
    """Driver of Apple GPUs, which have one queue and share the host's memory."""

    def stream(self) -> Any:
        return None

    def running(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self, stream: Any) -> Any:
        event = torch.mps.Event(enable_timing=True)
        event.record()
        return event

    def order(self, stream: Any, mark: Any) -> None:
        """Return immediately: a single queue keeps all work in order."""

    def seconds(self, start: Any, end: Any) -> float:
        try:
            return super().seconds(start, end)
        except RuntimeError as error:
            if "was not recorded after" not in str(error):
                raise
            return 0.0  # Torch reports no time between two marks that were reached at the same time.

    def pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def free_bytes(self) -> int:
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())

    def used_bytes(self) -> int:
        return torch.mps.current_allocated_memory()

    def limit(self, size: int | None) -> None:
        total = torch.mps.recommended_max_memory()
        torch.mps.set_per_process_memory_fraction(1.0 if size is None else min(1.0, size / total))

    def out_of_memory(self, error: Exception) -> bool:
        return super().out_of_memory(error) or "MPS backend out of memory" in str(error)


# Torch reports times between marks in milliseconds as float32, which is exact to 0.25 us over this many
# seconds.
_REACH_S = 2.0


class Timeline:
    """Clock of all streams of a device: nanoseconds since its creation, computed from reached marks.

    Times are measured from a reference mark, which is replaced periodically by a later one, but always
    precedes the recent work of every stream. The constructor records the first mark on `stream` and waits for
    it.
    """

    def __init__(self, driver: Driver, stream: Any) -> None:
        self._driver = driver
        first = driver.mark(stream)
        driver.wait(first)
        # Use one tuple, so that other threads read a consistent pair of mark and time.
        self._from: tuple[Any, int] = (first, 0)
        self._next: tuple[Any, int] = self._from

    def spans(self, marks: Sequence[tuple[str, Any, Any]]) -> list[Span]:
        """Return (name, start, end) in nanoseconds of each pair of marks; skip pairs with missing marks."""
        return [
            (name, self._at(start), self._at(end))
            for name, start, end in marks
            if start is not None and end is not None
        ]

    def follow(self, mark: Any) -> None:
        """Advance the reference to a mark that was reached. Only one thread may call this at a time."""
        now = self._at(mark)
        if now - self._next[1] >= 1e9 * _REACH_S / 2:
            self._from, self._next = self._next, (mark, now)

    def _at(self, mark: Any) -> int:
        origin, at = self._from
        return at + round(1e9 * self._driver.seconds(origin, mark))


# Alignment of each array in bytes, which suffices for any dtype and for full memory transactions.
_ALIGNMENT = 256
_STEP_BYTES = 1 << 20

DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(np.int8): torch.int8,
    np.dtype(np.int16): torch.int16,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


def pinned_pool(driver: Driver) -> BufferPool:
    """Create a pool of reusable pinned buffers, because pinning takes longer than the copies of a step."""
    return BufferPool(lambda size: driver.pinned(size).numpy(), _STEP_BYTES)


def fetch(
    driver: Driver, pool: BufferPool, stream: Any, tensors: Sequence[torch.Tensor]
) -> list[NDArray[Any]]:
    """Copy device tensors to the host after the stream's current work, and wait once for all copies."""
    starts = [0]
    for tensor in tensors:
        starts.append(starts[-1] + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT)
    buffer = pool.take(starts[-1], np.uint8)
    host = torch.from_numpy(buffer)
    views = [
        host[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, start in zip(tensors, starts, strict=False)
    ]
    for view, tensor in zip(views, tensors, strict=True):
        view.copy_(tensor, non_blocking=True)
    driver.wait(driver.mark(stream))
    copies = [view.numpy().copy() for view in views]
    pool.release(buffer)
    return copies


class CoalescedCopy:
    """Set of arrays that are sent to the device in one copy.

    An array that is added twice is sent once, because the blocks of a subgraph share their arrays.
    """

    def __init__(self) -> None:
        self._arrays: list[NDArray[Any]] = []
        self._starts: list[int] = []
        self._places: dict[int, int] = {}
        self.size = 0

    def add(self, array: NDArray[Any]) -> int:
        """Add an array, and return its index in the result of `send`."""
        place = self._places.get(id(array))
        if place is None:
            place = self._places[id(array)] = len(self._arrays)
            self._arrays.append(array)
            self._starts.append(self.size)
            self.size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return place

    def send(self, host: NDArray[np.uint8], device: torch.device) -> list[torch.Tensor]:
        """Copy all arrays to `host`, and from there to new device memory on the current stream.

        Return one device tensor per added array, with the array's shape and dtype.
        """
        for array, start in zip(self._arrays, self._starts, strict=True):
            view = host[start : start + array.nbytes].view(array.dtype)
            np.copyto(view.reshape(array.shape), array)
        there = torch.empty(max(1, self.size), dtype=torch.uint8, device=device)
        there[: self.size].copy_(torch.from_numpy(host)[: self.size], non_blocking=True)
        return [
            there[start : start + array.nbytes].view(DTYPES[array.dtype]).view(array.shape)
            for array, start in zip(self._arrays, self._starts, strict=True)
        ]
