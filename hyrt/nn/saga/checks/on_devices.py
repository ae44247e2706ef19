"""Check whether a device that runs loops over edges, and leaves vertices to the host, can train a model."""

from __future__ import annotations

import torch

from hyrt.errors import UnsupportedModel
from hyrt.nn.description import other_device
from hyrt.nn.fused.layer_loops import looped_attention
from hyrt.nn.layer import Layer
from hyrt.nn.layer_parts import AttentionSum, LayerParts
from hyrt.nn.model import GNN
from hyrt.nn.overridden import is_newer
from hyrt.nn.saga.layer import SagaLayer


def has_saga_layers(model: torch.nn.Module) -> bool:
    """Return whether a model has a `SagaLayer`."""
    return isinstance(model, GNN) and any(isinstance(layer, SagaLayer) for layer in model.layers)


def needs_loops(model: torch.nn.Module) -> bool:
    """Return whether a device with aggregation and product kernels must run a model as loops over edges.

    The device then leaves the vertices to the host. Such a model is a chain of layers of which at least one
    is not an aggregation followed by products: a `SagaLayer`, attention, a maximum or a norm.
    """
    if not isinstance(model, GNN) or is_newer(type(model), "forward", "layer"):
        return False
    if has_saga_layers(model):
        return True
    if not all(_parts(layer) is not None for layer in model.layers):
        return False
    try:
        model.description()
    except UnsupportedModel:
        return True
    return False


def _parts(layer: torch.nn.Module) -> LayerParts | None:
    """Return the stages of a layer; None if the layer cannot be decomposed or overrides `forward`."""
    if not isinstance(layer, Layer) or is_newer(type(layer), "forward", "parts"):
        return None
    return layer.parts(multiply_first=False)


def check_loops(model: torch.nn.Module, device: str) -> None:
    """Check that the edge computation of every layer is one fused loop.

    Parameters
    ----------
    model
        The model.
    device
        Name of the device that runs the loops, for messages.

    Raises
    ------
    UnsupportedModel
        If not; the message names the layer and the reason.
    """
    assert isinstance(model, GNN)
    remedy = other_device(device)
    if is_newer(type(model), "forward", "layer"):
        raise UnsupportedModel(
            f"{type(model).__name__} on {device}: it has a forward() of its own, and this device runs layers "
            f"one after the other: {remedy}"
        )
    for i, layer in enumerate(model.layers):
        name = f"layer 'layers.{i}' ({type(layer).__name__})"
        parts = _parts(layer)
        if parts is None:
            raise UnsupportedModel(
                f"{name} on {device}: it has a forward() of its own, from which this device cannot tell what "
                f"is done on edges: {remedy}"
            )
        if isinstance(layer, SagaLayer):
            was_training = layer.training
            reason = layer.train().unfused
            layer.train(was_training)
            if reason:
                is_built_in = type(layer).__module__.startswith("hyrt.")
                change = "" if is_built_in else "change that line as docs/layers.md says, or "
                raise UnsupportedModel(
                    f"{name} on {device}: its edges are not one fused loop ({reason}): {change}{remedy}"
                )
        elif isinstance(parts.gather, AttentionSum):
            heads = parts.gather.heads
            gather = looped_attention(heads, parts.gathered_width // heads, parts.gather.slope, None)
            if gather.unfusable:
                raise UnsupportedModel(f"{name} on {device}: {gather.unfusable}: {remedy}")
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if dtypes - {torch.float32}:
        raise UnsupportedModel(
            f"{type(model).__name__} on {device}: its loops are for float32, and the model has parameters of "
            f"{', '.join(sorted(map(str, dtypes)))}: {remedy}"
        )
