"""Whether a device that runs the loops of edges, and leaves vertices to the host, can train a model."""

from __future__ import annotations

import torch

from hyrt.errors import UnsupportedModel
from hyrt.nn.model import GNN
from hyrt.nn.overridden import is_newer
from hyrt.nn.saga.layer import SagaLayer


def has_saga_layers(model: torch.nn.Module) -> bool:
    """Whether a layer of a model is written as what is done on edges and at vertices."""
    return isinstance(model, GNN) and any(isinstance(layer, SagaLayer) for layer in model.layers)


def check_loops(model: torch.nn.Module, device: str) -> None:
    """Check that every layer of a model with `SagaLayer`s is one loop over edges.

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
    remedy = "train it on cpu or cuda"
    if is_newer(type(model), "forward", "layer"):
        raise UnsupportedModel(
            f"{type(model).__name__} on {device}: it has a forward() of its own, and this device runs layers "
            f"one after the other: {remedy}"
        )
    for i, layer in enumerate(model.layers):
        name = f"layer 'layers.{i}' ({type(layer).__name__})"
        if not isinstance(layer, SagaLayer):
            raise UnsupportedModel(
                f"{name} on {device}: beside layers that are written as hyrt.nn.SagaLayer, this device runs "
                f"no others: {remedy}"
            )
        if is_newer(type(layer), "forward", "parts"):
            raise UnsupportedModel(f"{name} on {device}: it has a forward() of its own: {remedy}")
        was = layer.training
        why = layer.train().unfused
        layer.train(was)
        if why:
            raise UnsupportedModel(
                f"{name} on {device}: its edges are not one fused loop: {why}. Change that line as "
                f"docs/layers.md says, or {remedy}"
            )
    kinds = {each.dtype for each in model.parameters()}
    if kinds - {torch.float32}:
        raise UnsupportedModel(
            f"{type(model).__name__} on {device}: its loops are for float32, and the model has parameters of "
            f"{', '.join(sorted(map(str, kinds)))}: {remedy}"
        )
