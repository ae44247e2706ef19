"""Streams, events, pinned memory and copies of a torch device."""

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
    """Streams, events and memory of one device. A mark is an event that has been recorded.

    CUDA and XPU devices as they are: torch gives both the same interface.

    Parameters
    ----------
    kind, index
        Torch's name of the device.
    """

    reads_in_place = False
    """Whether operators read arrays of the host where they lie."""

    def __init__(self, kind: str, index: int) -> None:
        self.device = torch.device(kind, index)
        self._api: Any = torch.get_device_module(kind)
        # An event that holds a thread without spinning leaves the core to the CPU stages.
        self._event_options = {"blocking": True} if kind == "cuda" else {}

    def stream(self) -> Any:
        """A new stream: its work runs in order, beside that of others."""
        return self._api.Stream(device=self.device)

    def running(self, stream: Any) -> AbstractContextManager[Any]:
        """Inside, the calling thread's operators run on the stream."""
        return cast("AbstractContextManager[Any]", self._api.stream(stream))

    def mark(self, stream: Any) -> Any:
        """Mark the stream's work so far, and the time at which it ends."""
        event = self._api.Event(enable_timing=True, **self._event_options)
        event.record(stream)
        return event

    def order(self, stream: Any, mark: Any) -> None:
        """Work given to the stream from now on starts after the mark."""
        stream.wait_event(mark)

    def wait(self, mark: Any) -> None:
        """Hold the calling thread until the mark is reached."""
        mark.synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        """Time between two marks that were reached."""
        return float(start.elapsed_time(end)) / 1000

    def reaches(self, other: Driver) -> bool:
        """Whether memory of another device is copied from without a detour over the host's."""
        if self.device.type != "cuda" or other.device.type != "cuda" or self.device == other.device:
            return False
        return bool(self._api.can_device_access_peer(self.device, other.device))

    def pinned(self, size: int) -> torch.Tensor:
        """[size] uint8 host memory that is copied to and from without a detour."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def free_bytes(self) -> int:
        """Memory of the device nobody has taken."""
        if hasattr(self._api, "mem_get_info"):
            return int(self._api.mem_get_info(self.device)[0])
        # Torch of before 2.7 does not ask Intel's driver: what others take is then not seen.
        return int(self._api.get_device_properties(self.device).total_memory) - self.used_bytes()

    def used_bytes(self) -> int:
        """Memory of the device that this process's tensors take."""
        return int(self._api.memory_allocated(self.device))

    def limit(self, size: int | None) -> None:
        """Bound what this process may take of the device; None takes the bound away."""
        if not hasattr(self._api, "set_per_process_memory_fraction"):
            return
        total = self._api.get_device_properties(self.device).total_memory
        fraction = 1.0 if size is None else min(1.0, size / total)
        self._api.set_per_process_memory_fraction(fraction, self.device)

    def out_of_memory(self, error: Exception) -> bool:
        """Whether an error says that the device's memory is used up."""
        return isinstance(error, torch.OutOfMemoryError)

    def trim(self) -> None:
        """Give memory that is kept for reuse back to the device."""
        self._api.empty_cache()


class HostDriver(Driver):
    """The CPU: everything happens at once, in the host's memory. A mark is the time, in seconds."""

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
        """Nothing to do: what was called for is over."""

    def wait(self, mark: Any) -> None:
        """Nothing is left to be done."""

    def seconds(self, start: Any, end: Any) -> float:
        return float(end - start)

    def used_bytes(self) -> int:
        return psutil.Process().memory_info().rss

    def trim(self) -> None:
        """Memory goes back by itself."""


class MpsDriver(Driver):
    """Apple's devices: one queue, and memory that is the host's."""

    def stream(self) -> Any:
        return None

    def running(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self, stream: Any) -> Any:
        event = torch.mps.Event(enable_timing=True)
        event.record()
        return event

    def order(self, stream: Any, mark: Any) -> None:
        """Nothing to do: there is one queue."""

    def seconds(self, start: Any, end: Any) -> float:
        try:
            return super().seconds(start, end)
        except RuntimeError as error:
            if "was not recorded after" not in str(error):
                raise
            return 0.0  # Torch tells no time between two marks that were reached at once.

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


# Torch tells the time between two marks as milliseconds in float32. Over this many seconds that is exact to a
# quarter of a microsecond; over an hour it would be to a quarter of a millisecond.
_REACH_S = 2.0


class Timeline:
    """One clock for all streams of a device: nanoseconds since it was made, from marks that were reached.

    Times are told from a mark that follows at a distance. It stays far enough behind that what any stream has
    just run came after it.

    Parameters
    ----------
    driver
        The hardware.
    stream
        The stream on which the first mark is made; it is waited for.
    """

    def __init__(self, driver: Driver, stream: Any) -> None:
        self._driver = driver
        first = driver.mark(stream)
        driver.wait(first)
        # Together, so that a thread that reads them sees both of one moment.
        self._from: tuple[Any, int] = (first, 0)
        self._next: tuple[Any, int] = self._from

    def spans(self, marks: Sequence[tuple[str, Any, Any]]) -> list[Span]:
        """Name, start and end in nanoseconds of what ran between two marks; nothing without a mark."""
        return [
            (name, self._at(start), self._at(end))
            for name, start, end in marks
            if start is not None and end is not None
        ]

    def follow(self, mark: Any) -> None:
        """Come after a mark that was reached; one thread at a time calls this."""
        now = self._at(mark)
        if now - self._next[1] >= 1e9 * _REACH_S / 2:
            self._from, self._next = self._next, (mark, now)

    def _at(self, mark: Any) -> int:
        origin, at = self._from
        return at + round(1e9 * self._driver.seconds(origin, mark))


# Every array in a parcel starts at a multiple of this: enough for any dtype and for full memory transactions.
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
    """Pinned memory, handed out again once it is given back: pinning costs more than a step's copies."""
    return BufferPool(lambda size: driver.pinned(size).numpy(), _STEP_BYTES)


def fetch(
    driver: Driver, pool: BufferPool, stream: Any, tensors: Sequence[torch.Tensor]
) -> list[NDArray[Any]]:
    """Host copies of device tensors, once the stream has made them; one wait for all."""
    starts = [0]
    for tensor in tensors:
        starts.append(starts[-1] + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT)
    buffer = pool.take(starts[-1], np.uint8)
    host = torch.from_numpy(buffer)
    rooms = [
        host[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, start in zip(tensors, starts, strict=False)
    ]
    for room, tensor in zip(rooms, tensors, strict=True):
        room.copy_(tensor, non_blocking=True)
    driver.wait(driver.mark(stream))
    copies = [room.numpy().copy() for room in rooms]
    pool.release(buffer)
    return copies


class CoalescedCopy:
    """Arrays that go to the device in one copy.

    An array that is added twice travels once: blocks of a subgraph share theirs.
    """

    def __init__(self) -> None:
        self._arrays: list[NDArray[Any]] = []
        self._starts: list[int] = []
        self._places: dict[int, int] = {}
        self.size = 0

    def add(self, array: NDArray[Any]) -> int:
        """Note an array; returns its place in what `send` gives."""
        place = self._places.get(id(array))
        if place is None:
            place = self._places[id(array)] = len(self._arrays)
            self._arrays.append(array)
            self._starts.append(self.size)
            self.size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return place

    def send(self, host: NDArray[np.uint8], device: torch.device) -> list[torch.Tensor]:
        """Copy everything into `host` and from there, on the current stream, to new memory of the device.

        Returns
        -------
        A tensor on the device for each place, in the array's shape and dtype.
        """
        for array, start in zip(self._arrays, self._starts, strict=True):
            room = host[start : start + array.nbytes].view(array.dtype)
            np.copyto(room.reshape(array.shape), array)
        there = torch.empty(max(1, self.size), dtype=torch.uint8, device=device)
        there[: self.size].copy_(torch.from_numpy(host)[: self.size], non_blocking=True)
        return [
            there[start : start + array.nbytes].view(DTYPES[array.dtype]).view(array.shape)
            for array, start in zip(self._arrays, self._starts, strict=True)
        ]
