"""Backward passes that give numbers, not a graph: what a compiled loop has written has no derivative."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def first_derivative(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse to run a backward pass whose result shall be differentiated again.

    Without it, `create_graph=True` would take the gradient for a constant, and a second derivative would be
    wrong without a word. `torch.autograd.function.once_differentiable` does not see it where the gradient
    depends on saved tensors only.
    """

    @wraps(backward)
    def checked(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "a compiled loop has a first derivative only: leave out create_graph=True, or write what is "
                "differentiated twice with torch's own operators"
            )
        return backward(ctx, *grads)

    return checked
