"""Cache-aligned arrays, and a pool of reusable buffers for arrays that live for one step."""

from __future__ import annotations

import bisect
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 64
"""Size of a cache line in bytes, which is also the width of the widest vectors."""


def align_memory(memory: NDArray[np.uint8], shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """View `memory`, which has `ALIGNMENT` spare bytes, as an array that starts at a cache line."""
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return np.ndarray(shape, dtype, memory, start)


def empty_aligned(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialized C-contiguous array that starts at a cache line."""
    size = (shape if isinstance(shape, int) else math.prod(shape)) * np.dtype(dtype).itemsize
    return align_memory(np.empty(size + ALIGNMENT, np.uint8), shape, dtype)


_PAGE = 4096


class PooledArrays:
    """Arrays that are taken from a pool for one purpose and released together."""

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._arrays: list[NDArray[Any]] = []

    def take(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Take an array from the pool, as `BufferPool.take` does."""
        array = self._pool.take(shape, dtype)
        self._arrays.append(array)
        return array

    def release(self) -> None:
        """Release all arrays, which must not be used afterwards."""
        for array in self._arrays:
            self._pool.release(array)


class _Loan(weakref.ref[NDArray[Any]]):
    """Weak reference that releases the memory of a lent array, ten times as fast as `weakref.finalize`."""

    __slots__ = ("memory",)
    memory: NDArray[np.uint8]


class BufferPool:
    """Thread-safe pool of reusable memory from which arrays are taken.

    Sizes differ slightly from step to step. New buffers are therefore an eighth larger than requested, and a
    request takes the smallest free buffer that fits, unless it is more than twice as large. `allocate`
    returns a uint8 array of a given size, and `step_bytes` is the granularity of buffer sizes.
    """

    def __init__(
        self,
        allocate: Callable[[int], NDArray[np.uint8]] = lambda size: np.empty(size, np.uint8),
        step_bytes: int = _PAGE,
    ) -> None:
        self._allocate = allocate
        self._step_bytes = step_bytes
        self._lock = threading.Lock()
        self._sizes: list[int] = []
        self._free: list[NDArray[np.uint8]] = []
        # A finalizer may run inside `take` on the same thread, so released memory is queued without a lock.
        self._released: deque[NDArray[np.uint8]] = deque()
        self._loans: dict[int, _Loan] = {}
        self.allocated_bytes = 0

    def take(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an uninitialized C-contiguous array that starts at a cache line."""
        kind = np.dtype(dtype)
        size = (shape if isinstance(shape, int) else math.prod(shape)) * kind.itemsize
        capacity = size + ALIGNMENT
        memory = None
        with self._lock:
            self._collect_released()
            index = bisect.bisect_left(self._sizes, capacity)
            if index < len(self._sizes) and self._sizes[index] <= 2 * capacity + self._step_bytes:
                del self._sizes[index]
                memory = self._free.pop(index)
            else:
                capacity = -(-(capacity + capacity // 8) // self._step_bytes) * self._step_bytes
                self.allocated_bytes += capacity
        if memory is None:
            memory = self._allocate(capacity)
        return align_memory(memory, shape, kind)

    def lend(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Take an array whose memory is released when the array is garbage-collected.

        Slices of the array do not keep it alive: wrap the whole array, as `torch.from_numpy` does.
        """
        array = self.take(shape, dtype)
        memory = array.base
        assert memory is not None
        loan = _Loan(array, self._end_loan)
        loan.memory = memory
        self._loans[id(loan)] = loan
        return array

    def release(self, array: NDArray[Any]) -> None:
        """Release an array from `take`, so that its memory can be reused."""
        memory: Any = array
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        self._released.append(memory)

    def clear(self) -> None:
        with self._lock:
            self._released.clear()
            self._sizes.clear()
            self._free.clear()

    def _end_loan(self, loan: weakref.ref[NDArray[Any]]) -> None:
        self._released.append(self._loans.pop(id(loan)).memory)

    def _collect_released(self) -> None:
        while self._released:
            memory = self._released.popleft()
            index = bisect.bisect_left(self._sizes, len(memory))
            self._sizes.insert(index, len(memory))
            self._free.insert(index, memory)
