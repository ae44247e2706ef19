"""Descriptions of models as aggregations, products and dropout, for devices that generate kernels.

A module describes itself with the method `description() -> ModelDescription`. `GNN` has it, and a
user-defined module may have it.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from hyrt.checks import check_type
from hyrt.errors import UnsupportedModelError
from hyrt.formatting import short_repr
from hyrt.nn.architecture import Aggregation


def overrides_only(kind: type, method: str, companion: str) -> bool:
    """Return whether a class overrides `method` but not `companion`, which describes it."""
    defined = [{method, companion} & vars(base).keys() for base in kind.__mro__]
    return next(names for names in defined if names) == {method}


@dataclass(frozen=True, slots=True)
class Product:
    """Linear map of rows, x W' + b, with an optional ReLU."""

    weight: nn.Parameter
    """Weight [out, in]."""
    bias: nn.Parameter | None
    """Bias [out]; None if there is none."""
    relu: bool

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """Description of a layer: an aggregation of source rows, then products of the destination rows."""

    name: str
    """Name of the layer's module, for messages."""
    aggregation: Aggregation
    """Aggregation of the source rows. Its result has `aggregation.width(f)` columns."""
    products: tuple[Product, ...]
    """Products in the order in which they are applied: one for GCN and GraphSAGE, two for GIN."""
    dropout: float = 0.0
    """Dropout rate of the output (mask keys: see `hyrt.nn.operators.dropout`); 0 for no dropout."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Description of all layers of a model."""

    layers: tuple[LayerDescription, ...]
    """One layer per block of the mini-batch, input layer first."""
    input_dropout: float = 0.0
    """Dropout rate of the input rows, whose mask key has layer number 0; 0 for no dropout."""


def suggest_device(device: str) -> str:
    """Return the part of a message that suggests another device for a model that `device` cannot run.

    CPU and torch devices reject a model only in chunked training or if several devices train it together.
    """
    if "+" not in device and not device.startswith(("cpu", "cuda", "mps", "xpu")):
        return "train it on cpu or cuda"
    return "train it on one cpu or cuda device, without fullgraph.chunks and the other chunk settings"


def describe(
    model: nn.Module,
    device: str,
    *,
    supported: str = "gcn, graphsage with mean or sum, gin",
    dropout: bool = True,
) -> ModelDescription:
    """Return the description of a model after checking that a device can run it.

    Parameters
    ----------
    model
        The model.
    device
        Name of the device, for messages.
    supported
        Built-in models that the device supports, for messages.
    dropout
        Whether the device supports dropout, which most model kinds use by default.

    Raises
    ------
    UnsupportedModelError
        If a layer cannot be described, a parameter is frozen, or the model has dropout and the device does
        not support it. The
        message names the layer and the device.
    """
    check_type("device", device, str, "pass the name of a device, such as fpga:0")
    check_type("model", model, nn.Module, "pass a torch module")
    remedy = suggest_device(device)
    get_description = getattr(model, "description", None)
    if get_description is None:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot run on {device}, which compiles its own kernels and supports "
            f"only models with a description() method ({supported}): {remedy}"
        )
    try:
        described: ModelDescription = get_description()
    except UnsupportedModelError as error:
        raise UnsupportedModelError(
            f"{device} cannot run {error} and supports only {supported}: {remedy}"
        ) from None
    if not dropout and (described.input_dropout or any(layer.dropout for layer in described.layers)):
        raise UnsupportedModelError(
            f"{type(model).__name__} uses dropout, which {device} does not support: set model.dropout=0 and "
            f"model.input_dropout=0, or {remedy}"
        )
    for layer in described.layers:
        for product in layer.products:
            for parameter in (product.weight, product.bias):
                if parameter is not None and not parameter.requires_grad:
                    raise UnsupportedModelError(
                        f"{device} cannot train layer {layer.name!r}, because one of its parameters is "
                        f"frozen: {remedy}"
                    )
    return described
