"""Arrays aligned to cache lines, for fast matrix products, vector loads and DMA."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 64
"""Size of a cache line in bytes, which is also the width of the widest vectors."""


def align_memory(memory: NDArray[np.uint8], shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """View `memory` as an array that starts at its first cache line.

    `memory` must have `ALIGNMENT` bytes more than the array.
    """
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return np.ndarray(shape, dtype, memory, start)


def empty_aligned(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised C-contiguous array that starts at a cache line."""
    size = (shape if isinstance(shape, int) else math.prod(shape)) * np.dtype(dtype).itemsize
    return align_memory(np.empty(size + ALIGNMENT, np.uint8), shape, dtype)
