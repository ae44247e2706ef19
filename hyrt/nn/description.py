"""What a model computes, in the few words that kernel devices compile: aggregations, products and dropout.

A module describes itself by a method `description() -> ModelDescription`; `GNN` has one, a module of the
user's may.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from hyrt.checks import check_kind
from hyrt.errors import UnsupportedModel
from hyrt.nn.aggregation import Aggregation
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True)
class Product:
    """Rows times a transposed weight, plus a bias, then perhaps a ReLU."""

    weight: nn.Parameter
    """[out, in]."""
    bias: nn.Parameter | None
    """[out], or None."""
    relu: bool
    """Whether a ReLU follows."""

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class LayerDescription:
    """One layer: aggregate source rows over a block, then multiply the destinations."""

    name: str
    """The name of the module, for messages."""
    aggregation: Aggregation
    """How sources are combined; its result is `aggregation.width(f)` wide."""
    products: tuple[Product, ...]
    """Applied one after the other: one for GCN and GraphSAGE, two for GIN."""
    dropout: float = 0.0
    """Rate of the dropout after the layer, keyed (seed, step, layer number, destination, column) as in
    `hyrt.nn.operators.dropout`; 0 for none."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A whole model."""

    layers: tuple[LayerDescription, ...]
    """The input's first; one a block of the mini-batch."""
    input_dropout: float = 0.0
    """Rate of the dropout on the input rows, layer number 0; 0 for none."""


def other_device(device: str) -> str:
    """Return the remedy for a model that a device cannot run as its settings want.

    On `cpu` and torch devices, that is so only in chunks, or on several devices together.
    """
    if "+" not in device and not device.startswith(("cpu", "cuda", "mps", "xpu")):
        return "train it on cpu or cuda"
    return "train it on one cpu or cuda device, without fullgraph.chunks and the other settings of chunks"


def describe(
    model: nn.Module,
    device: str,
    *,
    takes: str = "gcn, graphsage with mean or sum, gin",
    dropout: bool = True,
) -> ModelDescription:
    """A model's description, checked.

    Parameters
    ----------
    model
        The model to describe.
    device
        The name of the device that asks, for messages.
    takes
        The models of this project that it runs, for messages.
    dropout
        Whether it computes dropout, which most kinds of models have by default.

    Raises
    ------
    UnsupportedModel
        Naming layer and device, if a layer does more than these words say, a parameter is frozen, or there is
        dropout and the device has none.
    """
    check_kind("device", device, str, "give the name of a device, such as fpga:0")
    check_kind("model", model, nn.Module, "give a torch module")
    remedy = other_device(device)
    speaks = getattr(model, "description", None)
    if speaks is None:
        raise UnsupportedModel(
            f"{type(model).__name__} on {device}: this device compiles its own kernels and runs only "
            f"models that describe themselves ({takes}): {remedy}"
        )
    try:
        described: ModelDescription = speaks()
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{device} cannot run {error}: {remedy}. {device} runs {takes}") from None
    if not dropout and (described.input_dropout or any(layer.dropout for layer in described.layers)):
        raise UnsupportedModel(
            f"{type(model).__name__} with dropout on {device}: this device has none: set model.dropout=0 "
            f"and model.input_dropout=0, or {remedy}"
        )
    for layer in described.layers:
        for product in layer.products:
            for parameter in (product.weight, product.bias):
                if parameter is not None and not parameter.requires_grad:
                    raise UnsupportedModel(
                        f"layer {layer.name!r} on {device}: a parameter is frozen: {remedy}"
                    )
    return described
