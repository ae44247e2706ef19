"""Reused memory for arrays that live for one step: fresh pages cost more than the work done in them."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_GRAIN = 1 << 16


class BufferPool:
    """Hands out arrays over recycled memory; any thread may take and give back.

    Sizes are rounded up to an eighth of their power of two, so that the slightly different sizes of successive
    steps meet in few classes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self.allocated_bytes = 0

    def take(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An uninitialised C-contiguous array, aligned to 64 bytes."""
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        room = _rounded(size)
        with self._lock:
            free = self._free[room]
            memory = free.pop() if free else None
            if memory is None:
                self.allocated_bytes += room
        if memory is None:
            memory = np.empty(room + 64, np.uint8)
        start = -memory.ctypes.data % 64
        return memory[start : start + size].view(kind).reshape(shape)

    def give(self, array: NDArray[Any]) -> None:
        """Take back an array of `take`; its memory is handed out again."""
        memory: Any = array
        while memory.base is not None:
            memory = memory.base
        with self._lock:
            self._free[len(memory) - 64].append(memory)


def _rounded(size: int) -> int:
    if size <= _GRAIN:
        return _GRAIN
    step = 1 << max(16, size.bit_length() - 4)
    return -(-size // step) * step
