"""Output buffers of operators, from the buffer pool of the calling thread's team if it has one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from hyrt.machine.workers import current_workers

# The allocator returns no pages of smaller arrays to the system, and pooling takes longer than allocating.
_MIN_POOLED = 1 << 12


def _is_small(shape: int | tuple[int, ...]) -> bool:
    return (shape if isinstance(shape, int) else math.prod(shape)) < _MIN_POOLED


def empty_array(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialised array; the pool reclaims it when the array or its tensor is collected."""
    pool = current_workers().pool
    return np.empty(shape, dtype) if pool is None or _is_small(shape) else pool.lend(shape, dtype)


def empty(shape: int | tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Return an uninitialised CPU tensor of `like`'s dtype that begins at a multiple of 64 bytes."""
    pool = current_workers().pool
    if pool is None or _is_small(shape) or like.dtype not in (torch.float32, torch.float64):
        return torch.empty(shape, dtype=like.dtype)
    return torch.from_numpy(pool.lend(shape, np.float32 if like.dtype == torch.float32 else np.float64))
