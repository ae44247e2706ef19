"""Selection of the weight for feature parallelism, with a check that the model supports it."""

from __future__ import annotations

import torch

from hyrt.errors import ConfigError
from hyrt.nn.inputs import inputs_of
from hyrt.nn.layers import ConvolutionLayer, GatLayer, GinLayer
from hyrt.nn.model import GNN
from hyrt.nn.overridden import is_newer


def divided_weight(model: torch.nn.Module) -> torch.nn.Parameter:
    """Return the first layer's weight that multiplies the input rows or their aggregates.

    Raises
    ------
    ConfigError
        If the first layer is not a sum over columns before its activation, or if other layers read the rows.
    """
    if isinstance(model, GNN) and not is_newer(type(model), "forward", "layer"):
        architecture, layer = model.architecture, model.layers[0]
        is_only_reader = (
            architecture.input_dropout == 0 and not model.adds_own(0) and not architecture.low_precision
        )
        if is_only_reader and isinstance(layer, GatLayer):
            return layer.weight
        inner = layer.inner if isinstance(layer, GinLayer) else layer
        aggregation = inputs_of(model).aggregation
        if (
            is_only_reader
            and isinstance(inner, ConvolutionLayer)
            and aggregation
            and aggregation.reduce != "max"
        ):
            return inner.weight
    raise ConfigError(
        "distributed.strategy=p3 divides the first layer by feature columns, which is supported for gcn, "
        "deepgcn, graphsage with mean or sum, gin and gat, without input dropout, bf16 and a residual of the "
        "first layer: change the model, or use another strategy"
    )
