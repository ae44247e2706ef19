"""Pool of matrices, whose memory is reused by later steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from hyrt.fullgraph.host_budget import HostBudget


def smallest_that_fits(free: Sequence[tuple[bool, int]], size: int) -> int | None:
    """Return the index of the smallest free block of at least `size` bytes, preferring memory over files.

    Parameters
    ----------
    free
        For each free block, whether it is in a file, and its size in bytes.
    size
        The required bytes.

    Returns
    -------
    The index, or None if all blocks are too small.
    """
    candidates = [index for index, (_, available) in enumerate(free) if available >= size]
    return min(candidates, key=lambda index: free[index]) if candidates else None


class RecycledMatrices:
    """Pool of large matrices.

    Full-graph matrices are too large for the slack of `hyrt.machine.buffer_pool.BufferPool`. One thread takes
    and gives them in the same order in every step, so the first step allocates the peak, and later steps
    allocate nothing.

    Parameters
    ----------
    budget
        Limit of the host memory. Matrices beyond it are memory-mapped files with the same content.
    """

    def __init__(self, budget: HostBudget | None = None) -> None:
        self._budget = budget or HostBudget()
        self._free: list[NDArray[np.uint8]] = []
        self._sizes: list[tuple[bool, int]] = []  # Parallel to _free: whether in a file, and bytes.
        self._mapped: set[int] = set()  # Addresses of blocks in files.
        self.memory_bytes = 0
        """Bytes of all matrices in memory, in use or free."""
        self.file_bytes = 0
        """Bytes of all matrices in files."""

    @property
    def allocated_bytes(self) -> int:
        """Return the bytes of all matrices, in use or free."""
        return self.memory_bytes + self.file_bytes

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Take an uninitialised matrix from the pool.

        Raises
        ------
        HostMemoryExhausted
            If the matrix needs a file that cannot be allocated.
        """
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        index = smallest_that_fits(self._sizes, size)
        if index is not None:
            memory = self._free.pop(index)
            del self._sizes[index]
        else:
            memory = self._new(size)
        return memory[:size].view(kind).reshape(shape)

    def give(self, matrix: NDArray[Any] | None) -> None:
        """Return a matrix to the pool; it must not be read afterwards."""
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
        allocated: NDArray[np.uint8] = torch.empty(
            size, dtype=torch.uint8
        ).numpy()  # Aligned to a cache line.
        return allocated
