"""Pool of reusable host matrices within a memory budget; matrices that exceed it are memory-mapped files."""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from hyrt.errors import HostMemoryError
from hyrt.formatting import format_bytes


@dataclass(frozen=True, slots=True)
class HostMemoryBudget:
    """Limit of the host memory for matrices, and the folder of the files for matrices that exceed it."""

    limit_bytes: int | None = None
    """Maximum number of bytes of matrices in memory; None for no limit."""
    folder: Path | None = None
    """Folder of the files; None for the temporary folder of the system."""

    def allows(self, used_bytes: int, more_bytes: int) -> bool:
        """Return whether `more_bytes` fit into the budget in addition to `used_bytes`."""
        return self.limit_bytes is None or used_bytes + more_bytes <= self.limit_bytes

    def allocate_in_file(self, size_bytes: int) -> NDArray[np.uint8]:
        """Allocate an uninitialized uint8 array [size_bytes] of at least one byte in a temporary file.

        The system writes pages to the file under memory pressure. The file has no name, so it is deleted with
        the array, or when the process ends for any reason. Its blocks are allocated at once, since writing to
        a map on a full disk would kill the process with SIGBUS. Raises HostMemoryError if the file cannot be
        allocated; nothing is left on the disk.
        """
        folder = Path(tempfile.gettempdir()) if self.folder is None else self.folder
        try:
            with tempfile.TemporaryFile(dir=folder, prefix="hyrt-matrix-") as file:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
                mapped = mmap.mmap(file.fileno(), size_bytes)
        except OSError as error:
            # The partial file has been deleted by now.
            free = shutil.disk_usage(folder).free if folder.is_dir() else 0
            raise HostMemoryError(
                f"a matrix of {format_bytes(size_bytes)} beyond "
                f"fullgraph.host_memory={format_bytes(self.limit_bytes or 0)} cannot be stored in a file in "
                f"{folder} ({error.strerror or error}, {format_bytes(free)} free): free space, use a run "
                "folder on a larger disk, or raise fullgraph.host_memory"
            ) from error
        return np.frombuffer(mapped, np.uint8)


def best_fit(free: Sequence[tuple[bool, int]], size: int) -> int | None:
    """Return the index of the smallest free block of at least `size` bytes; None if all are too small.

    Each item of `free` says whether the block is in a file, and has its size. Blocks in memory are preferred
    to files.
    """
    candidates = [index for index, (_, available) in enumerate(free) if available >= size]
    return min(candidates, key=lambda index: free[index]) if candidates else None


class MatrixPool:
    """Pool of large matrices.

    `hyrt.runtime.buffer_pool.BufferPool` would waste memory here, as it rounds sizes up. One thread takes and
    returns the matrices in the same order in every step, so the first step allocates the peak memory, and
    later steps do not allocate. Matrices that exceed the `budget` are memory-mapped files.
    """

    def __init__(self, budget: HostMemoryBudget | None = None) -> None:
        self._budget = budget or HostMemoryBudget()
        self._free: list[NDArray[np.uint8]] = []
        # For each entry of _free: is the block in a file, and how many bytes does it have?
        self._sizes: list[tuple[bool, int]] = []
        self._mapped: set[int] = set()  # Addresses of the blocks in files.
        self.memory_bytes = 0
        """Total bytes of all matrices in memory, in use or free."""
        self.file_bytes = 0
        """Total bytes of all matrices in files."""

    @property
    def allocated_bytes(self) -> int:
        """Total bytes of all matrices, in use or free."""
        return self.memory_bytes + self.file_bytes

    def take(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Take an uninitialized matrix. Raises HostMemoryError if a file cannot be allocated for it."""
        kind = np.dtype(dtype)
        size = math.prod(shape) * kind.itemsize
        index = best_fit(self._sizes, size)
        if index is not None:
            memory = self._free.pop(index)
            del self._sizes[index]
        else:
            memory = self._new(size)
        return memory[:size].view(kind).reshape(shape)

    def release(self, matrix: NDArray[Any] | None) -> None:
        """Return a matrix to the pool. It must not be used afterwards."""
        if matrix is None:
            return
        memory: Any = matrix
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        self._free.append(memory)
        self._sizes.append((bool(self._mapped) and memory.ctypes.data in self._mapped, len(memory)))

    def _new(self, size: int) -> NDArray[np.uint8]:
        if size and not self._budget.allows(self.memory_bytes, size):
            memory = self._budget.allocate_in_file(size)
            self._mapped.add(memory.ctypes.data)
            self.file_bytes += size
            return memory
        self.memory_bytes += size
        allocated: NDArray[np.uint8] = torch.empty(
            size, dtype=torch.uint8
        ).numpy()  # torch aligns the memory to a cache line.
        return allocated
