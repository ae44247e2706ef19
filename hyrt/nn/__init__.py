"""Sparse operators with exact backward passes, layers, models and model descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyrt.nn.hetero.hetero_gnn import hetero_stack
    from hyrt.nn.message_passing.layer import SagaLayer
    from hyrt.nn.model import stack

__all__ = ["SagaLayer", "hetero_stack", "stack"]

_HOMES = {
    "SagaLayer": "hyrt.nn.message_passing.layer",
    "stack": "hyrt.nn.model",
    "hetero_stack": "hyrt.nn.hetero.hetero_gnn",
}


def __getattr__(name: str) -> Any:
    # Import on first use, so that reading model settings does not import torch.
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'hyrt.nn' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
