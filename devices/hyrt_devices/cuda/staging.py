"""Host memory for copies to and from the device, reused from step to step, and what travels in one piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.machine.buffer_pool import BufferPool
from hyrt_devices.cuda.driver import Driver

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
