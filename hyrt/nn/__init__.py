"""Neural network code: sparse operators with exact backward passes, layers, models and model descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyrt.nn.model import stack
    from hyrt.nn.saga.layer import SagaLayer
    from hyrt.nn.typed.typed_stack import typed_stack

__all__ = ["SagaLayer", "stack", "typed_stack"]

_HOMES = {
    "SagaLayer": "hyrt.nn.saga.layer",
    "stack": "hyrt.nn.model",
    "typed_stack": "hyrt.nn.typed.typed_stack",
}


def __getattr__(name: str) -> Any:
    # Import on first use, so that reading model settings does not import torch.
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'hyrt.nn' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
