"""Descriptions of models as aggregations, products and dropout, for devices that compile kernels.

A module describes itself with a method `description() -> ModelDescription`, which `GNN` has and a
user-defined module may have.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from hyrt.checks import check_type
from hyrt.errors import UnsupportedModelError
from hyrt.formatting import short_repr
from hyrt.nn.architecture import Aggregation


def overrides_only(kind: type, method: str, companion: str) -> bool:
    """Return whether a class overrides `method` but not the attribute `companion` that describes it."""
    defined = [{method, companion} & vars(base).keys() for base in kind.__mro__]
    return next(names for names in defined if names) == {method}


@dataclass(frozen=True, slots=True)
class Product:
    """Linear map of rows, x W' + b, with an optional ReLU."""

    weight: nn.Parameter
    """[out, in]."""
    bias: nn.Parameter | None
    """[out], or None for no bias."""
    relu: bool

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """A layer: an aggregation of source rows over a block, followed by products of the destinations."""

    name: str
    """Name of the module, for messages."""
    aggregation: Aggregation
    """Aggregation of the source rows; its result has `aggregation.width(f)` columns."""
    products: tuple[Product, ...]
    """Products in order: one for GCN and GraphSAGE, two for GIN."""
    dropout: float = 0.0
    """Dropout rate after the layer, with the mask keys of `hyrt.nn.operators.dropout`; 0 for no dropout."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """All layers of a model."""

    layers: tuple[LayerDescription, ...]
    """One layer per block of the mini-batch, input layer first."""
    input_dropout: float = 0.0
    """Dropout rate of the input rows, with layer number 0 in the mask key; 0 for no dropout."""


def suggest_device(device: str) -> str:
    """Return the message text that suggests another device for a model that `device` cannot run.

    CPU and torch devices reject a model only if it is trained in chunks or on several devices together.
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
        Whether the device supports dropout, which most kinds of models have by default.

    Raises
    ------
    UnsupportedModelError
        If a layer cannot be described, a parameter is frozen, or the device does not support the dropout. The
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
