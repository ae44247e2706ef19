"""Reused memory for arrays that live for one step: fresh pages cost more than the work done in them."""

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

from hyrt.machine.aligned_arrays import ALIGNMENT, align_memory

_PAGE = 4096


class TakenArrays:
    """Arrays that are taken from a pool for one purpose, and given back together.

    Parameters
    ----------
    pool
        The pool to take from.
    """

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._arrays: list[NDArray[Any]] = []

    def take(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """As `BufferPool.take`."""
        array = self._pool.take(shape, dtype)
        self._arrays.append(array)
        return array

    def give_back(self) -> None:
        """Give all of them back; they must not be read afterwards."""
        for array in self._arrays:
            self._pool.give(array)


class _Loan(weakref.ref[NDArray[Any]]):
    """Tells the pool that a lent array is gone; `weakref.finalize` would take ten times as long."""

    __slots__ = ("memory",)
    memory: NDArray[np.uint8]


class BufferPool:
    """Hands out arrays over recycled memory; any thread may take and give back.

    Sizes of successive steps differ slightly: memory is allocated an eighth larger than asked for, and a
    request takes the smallest free piece that holds it, unless that is more than twice its size.

    Parameters
    ----------
    allocate
        Gives new memory of so many bytes, [n] uint8.
    step_bytes
        What sizes are rounded up to.
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
        # A finalizer may run inside `take`, on the same thread: what comes back waits here, without a lock.
        self._returned: deque[NDArray[np.uint8]] = deque()
        self._loans: dict[int, _Loan] = {}
        self.allocated_bytes = 0

    def take(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An uninitialised C-contiguous array, aligned to 64 bytes."""
        kind = np.dtype(dtype)
        size = (shape if isinstance(shape, int) else math.prod(shape)) * kind.itemsize
        room = size + ALIGNMENT
        memory = None
        with self._lock:
            self._sort_in()
            at = bisect.bisect_left(self._sizes, room)
            if at < len(self._sizes) and self._sizes[at] <= 2 * room + self._step_bytes:
                del self._sizes[at]
                memory = self._free.pop(at)
            else:
                room = -(-(room + room // 8) // self._step_bytes) * self._step_bytes
                self.allocated_bytes += room
        if memory is None:
            memory = self._allocate(room)
        return align_memory(memory, shape, kind)

    def lend(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Like `take`, but the memory comes back by itself when the array is collected.

        Slices of the array do not keep it alive: wrap it whole, as `torch.from_numpy` does.
        """
        array = self.take(shape, dtype)
        memory = array.base
        assert memory is not None
        loan = _Loan(array, self._end_loan)
        loan.memory = memory
        self._loans[id(loan)] = loan
        return array

    def give(self, array: NDArray[Any]) -> None:
        """Take back an array of `take`; its memory is handed out again."""
        memory: Any = array
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        self._returned.append(memory)

    def clear(self) -> None:
        """Forget the free memory."""
        with self._lock:
            self._returned.clear()
            self._sizes.clear()
            self._free.clear()

    def _end_loan(self, loan: weakref.ref[NDArray[Any]]) -> None:
        self._returned.append(self._loans.pop(id(loan)).memory)

    def _sort_in(self) -> None:
        while self._returned:
            memory = self._returned.popleft()
            at = bisect.bisect_left(self._sizes, len(memory))
            self._sizes.insert(at, len(memory))
            self._free.insert(at, memory)
