"""Decorator for backward passes that cannot be differentiated again, and pooled output buffers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from hyrt.runtime.workers import current_workers


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make a backward pass raise an error if its result is differentiated again.

    Otherwise `create_graph=True` would treat the gradient as a constant, so that second derivatives would be
    wrong without an error. `torch.autograd.function.once_differentiable` does not detect this if the gradient
    depends on saved tensors only.
    """

    @wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "compiled loops support only first derivatives: remove create_graph=True, or use torch's "
                "own operators for the part that is differentiated twice"
            )
        return backward(ctx, *grads)

    return checked


# Smaller arrays are not pooled, since malloc reuses their pages and is faster than pooling.
_MIN_POOLED = 1 << 12


def _is_small(shape: int | tuple[int, ...]) -> bool:
    return (shape if isinstance(shape, int) else math.prod(shape)) < _MIN_POOLED


def empty_array(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an uninitialized array; a pool reclaims it when the array or its tensor is collected."""
    pool = current_workers().pool
    return np.empty(shape, dtype) if pool is None or _is_small(shape) else pool.lend(shape, dtype)


def empty(shape: int | tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Return an uninitialized CPU tensor with the dtype of `like` that begins at a multiple of 64 bytes."""
    pool = current_workers().pool
    if pool is None or _is_small(shape) or like.dtype not in (torch.float32, torch.float64):
        return torch.empty(shape, dtype=like.dtype)
    return torch.from_numpy(pool.lend(shape, np.float32 if like.dtype == torch.float32 else np.float64))
