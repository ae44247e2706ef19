"""Whether a device that runs the loops of edges, and leaves vertices to the host, can train a model."""

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
    """Whether a layer of a model is written as what is done on edges and at vertices."""
    return isinstance(model, GNN) and any(isinstance(layer, SagaLayer) for layer in model.layers)


def needs_loops(model: torch.nn.Module) -> bool:
    """Whether a device that computes sums and products of rows leaves a model's vertices to the host.

    It runs loops over edges then. Such a model is a chain of layers, and something in it is no sum along
    edges with products after it: a layer that says what is done on edges, attention, a maximum, a norm.
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
    """A layer taken apart, where it is computed so."""
    if not isinstance(layer, Layer) or is_newer(type(layer), "forward", "parts"):
        return None
    return layer.parts(multiply_first=False)


def check_loops(model: torch.nn.Module, device: str) -> None:
    """Check that what every layer of a model does on edges is one loop.

    Parameters
    ----------
    model
        The model.
    device
        The name of the device that runs the loops, for messages.

    Raises
    ------
    UnsupportedModel
        Naming the layer and what is missing.
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
            was = layer.training
            why = layer.train().unfused
            layer.train(was)
            if why:
                is_built_in = type(layer).__module__.startswith("hyrt.")
                change = "" if is_built_in else "change that line as docs/layers.md says, or "
                raise UnsupportedModel(
                    f"{name} on {device}: its edges are not one fused loop ({why}): {change}{remedy}"
                )
        elif isinstance(parts.gather, AttentionSum):
            heads = parts.gather.heads
            gather = looped_attention(heads, parts.gathered_width // heads, parts.gather.slope, None)
            if gather.unfusable:
                raise UnsupportedModel(f"{name} on {device}: {gather.unfusable}: {remedy}")
    kinds = {each.dtype for each in model.parameters()}
    if kinds - {torch.float32}:
        raise UnsupportedModel(
            f"{type(model).__name__} on {device}: its loops are for float32, and the model has parameters of "
            f"{', '.join(sorted(map(str, kinds)))}: {remedy}"
        )
