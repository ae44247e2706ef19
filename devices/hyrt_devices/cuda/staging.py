"""Host memory for copies to and from the device, reused from step to step, and what travels in one piece."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt_devices.cuda.driver import Driver

# Every array in a parcel starts at a multiple of this: enough for any dtype and for full memory transactions.
_ALIGNMENT = 256
_STEP = 1 << 20

_DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float32): torch.float32,
}


class PinnedPool:
    """Pinned buffers, handed out again once they are given back: pinning costs more than a step's copies.

    Any thread may take and give.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._free: list[torch.Tensor] = []  # Sorted by size.
        self.allocated_bytes = 0

    def take(self, size: int) -> torch.Tensor:
        """A uint8 buffer of at least `size` bytes: the smallest free one, unless over twice as large."""
        with self._lock:
            at = bisect.bisect_left(self._free, size, key=len)
            if at < len(self._free) and len(self._free[at]) <= 2 * size + _STEP:
                return self._free.pop(at)
            # Sizes of successive steps differ slightly: an eighth more fits the next ones too.
            room = -(-(size + size // 8) // _STEP) * _STEP
            self.allocated_bytes += room
        return self._driver.pinned(room)

    def give(self, buffer: torch.Tensor) -> None:
        """Take back a buffer that no copy reads or writes any more."""
        with self._lock:
            bisect.insort(self._free, buffer, key=len)

    def clear(self) -> None:
        """Forget the free buffers."""
        with self._lock:
            self._free.clear()


def fetch(
    driver: Driver, pool: PinnedPool, stream: Any, tensors: Sequence[torch.Tensor]
) -> list[NDArray[Any]]:
    """Host copies of device tensors, once the stream has made them; one wait for all."""
    starts = [0]
    for tensor in tensors:
        starts.append(starts[-1] + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT)
    buffer = pool.take(starts[-1])
    rooms = [
        buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for tensor, start in zip(tensors, starts, strict=False)
    ]
    for room, tensor in zip(rooms, tensors, strict=True):
        room.copy_(tensor, non_blocking=True)
    driver.wait(driver.mark(stream))
    copies = [room.numpy().copy() for room in rooms]
    pool.give(buffer)
    return copies


class Parcel:
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

    def send(self, host: torch.Tensor, device: torch.device) -> list[torch.Tensor]:
        """Copy everything into `host` and from there, on the current stream, to new memory of the device.

        Returns
        -------
        A tensor on the device for each place, in the array's shape and dtype.
        """
        memory = host.numpy()
        for array, start in zip(self._arrays, self._starts, strict=True):
            room = memory[start : start + array.nbytes].view(array.dtype)
            np.copyto(room.reshape(array.shape), array)
        there = torch.empty(max(1, self.size), dtype=torch.uint8, device=device)
        there[: self.size].copy_(host[: self.size], non_blocking=True)
        return [
            there[start : start + array.nbytes].view(_DTYPES[array.dtype]).view(array.shape)
            for array, start in zip(self._arrays, self._starts, strict=True)
        ]
