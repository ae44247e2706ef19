"""Backward passes that cannot be differentiated again: autograd does not record compiled loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make a backward pass raise an error if its result is to be differentiated again.

    Without this decorator, `create_graph=True` would treat the gradient as a constant, and a second
    derivative would silently be wrong. `torch.autograd.function.once_differentiable` does not detect this if
    the gradient depends on saved tensors only.
    """

    @wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a compiled loop has a first derivative only: remove create_graph=True, or use "
                "torch's own operators for the part that is differentiated twice"
            )
        return backward(ctx, *grads)

    return checked
