"""Memory of matrices that a step needs for a while; the next step gets the same memory again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from hyrt.fullgraph.host_budget import HostBudget


def smallest_that_fits(free: Sequence[tuple[bool, int]], size: int) -> int | None:
    """Which of the free ones is given to a matrix of `size` bytes, in memory rather than in a file.

    Parameters
    ----------
    free
        Whether each of them is in a file, and its bytes.
    size
        The bytes that are needed.

    Returns
    -------
    Its place among the free ones; None where all are too small.
    """
    large = [at for at, (_, have) in enumerate(free) if have >= size]
    return min(large, key=lambda at: free[at]) if large else None


class RecycledMatrices:
    """Hands out matrices; what comes back is handed out again.

    Whole matrices are too large for the slack of `hyrt.machine.buffer_pool.BufferPool`, and one thread takes
    and gives them, always in the same order: the first step allocates the most that is in use at any time,
    and no later one allocates.

    Parameters
    ----------
    budget
        How much memory they may take. Those for which it has no room live in a file that is mapped to
        memory; they hold the same numbers.
    """

    def __init__(self, budget: HostBudget | None = None) -> None:
        self._budget = budget or HostBudget()
        self._free: list[NDArray[np.uint8]] = []
        self._sizes: list[tuple[bool, int]] = []  # Of the free ones: whether in a file, and bytes.
        self._mapped: set[int] = set()  # Addresses of those in files.
        self.memory_bytes = 0
        """Bytes of all matrices in memory, in use or free."""
        self.file_bytes = 0
        """Bytes of all matrices in files."""

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all matrices, in use or free."""
        return self.memory_bytes + self.file_bytes

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An uninitialised matrix.

        Raises
        ------
        HostMemoryExhausted
            If it would live in a file, and that cannot be written.
        """
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        at = smallest_that_fits(self._sizes, size)
        if at is not None:
            memory = self._free.pop(at)
            del self._sizes[at]
        else:
            memory = self._new(size)
        return memory[:size].view(kind).reshape(shape)

    def give(self, matrix: NDArray[Any] | None) -> None:
        """Take a matrix back; it must not be read afterwards."""
        if matrix is None:
            return
        memory: Any = matrix
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        self._free.append(memory)
        self._sizes.append((bool(self._mapped) and memory.ctypes.data in self._mapped, len(memory)))

    def _new(self, size: int) -> NDArray[np.uint8]:
        if size and not self._budget.allows(self.memory_bytes, size):
            memory = self._budget.in_file(size)
            self._mapped.add(memory.ctypes.data)
            self.file_bytes += size
            return memory
        self.memory_bytes += size
        allocated: NDArray[np.uint8] = torch.empty(size, dtype=torch.uint8).numpy()  # Begins at a cache line.
        return allocated
