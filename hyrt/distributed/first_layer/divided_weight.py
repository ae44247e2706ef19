"""Which models have a first layer whose product can be divided by columns, and what its weight is."""

from __future__ import annotations

import torch

from hyrt.errors import ConfigError
from hyrt.nn.inputs import inputs_of
from hyrt.nn.layers import ConvolutionLayer, GatLayer, GinLayer
from hyrt.nn.model import GNN
from hyrt.nn.overridden import is_newer


def divided_weight(model: torch.nn.Module) -> torch.nn.Parameter:
    """The weight that the first layer multiplies input rows, or what they aggregate to, with.

    Raises
    ------
    ConfigError
        If the first layer is not a sum over columns before its activation, or something else reads the rows.
    """
    if isinstance(model, GNN) and not is_newer(type(model), "forward", "layer"):
        a, layer = model.architecture, model.layers[0]
        alone = a.input_dropout == 0 and not model.adds_own(0) and not a.low_precision
        if alone and isinstance(layer, GatLayer):
            return layer.weight
        inner = layer.inner if isinstance(layer, GinLayer) else layer
        aggregation = inputs_of(model).aggregation
        if alone and isinstance(inner, ConvolutionLayer) and aggregation and aggregation.reduce != "max":
            return inner.weight
    raise ConfigError(
        "distributed.strategy=p3 divides the first layer by columns of the features, which gcn, deepgcn, "
        "graphsage with mean or sum, gin and gat allow, without input dropout, bf16 and rows that are added "
        "to its result: change the model, or give another strategy"
    )
