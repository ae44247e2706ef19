"""The first layer on sparse features: each row is multiplied once, and the products are aggregated in place.

Inside a mini-batch a layer multiplies the rows it gathered. Over a whole graph a vertex is the source of many
destinations, so there its product is kept.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hyrt.nn.aggregation import Aggregation
from hyrt.nn.layers import ConvolutionLayer, GatLayer, GinLayer
from hyrt.nn.model import GNN
from hyrt.nn.operators.aggregate import aggregate_into
from hyrt.nn.operators.attention import attend
from hyrt.nn.operators.product import linear
from hyrt.nn.operators.sparse import SparseRows, sparse_linear
from hyrt.sampling.block import Block


def source_weight(model: GNN) -> torch.Tensor | None:
    """What sources' rows are multiplied by in the first layer.

    Returns
    -------
    [width of the products, F], or None where aggregation has to come first: a maximum.
    """
    layer = model.layers[0]
    if isinstance(layer, GatLayer):
        return layer.weight.flatten(0, 1)
    inner = _convolution(layer)
    return None if inner.aggregation.reduce == "max" else inner.weight[:, -inner.in_features :]


def first_layer(model: GNN, block: Block, products: NDArray[Any], own: SparseRows) -> torch.Tensor:
    """The first layer with its residual, norm and activation, without dropout.

    Parameters
    ----------
    model
        Its `source_weight` is not None.
    block
        Read in place.
    products
        [V, width] float32: rows of the block's sources times `source_weight(model)`.
    own
        Rows of the destinations.

    Returns
    -------
    [num_dst, hidden], or scores where there is one layer only.
    """
    a = model.architecture
    layer = model.layers[0]
    if isinstance(layer, GatLayer):
        out = _attend(layer, block, products)
    else:
        out = _convolve(_convolution(layer), block, products, own)
        if isinstance(layer, GinLayer):
            out = linear(out.relu_(), layer.weight, layer.bias, low_precision=layer.low_precision)
    if a.layers == 1:
        return out
    if a.residual:
        shortcut = model.shortcuts[0]
        out = out + (sparse_linear(own, shortcut.weight) if isinstance(shortcut, nn.Linear) else own.dense())
    if a.norm == "layer":
        out = model.norms[0](out)
    return out.relu_()


def _convolution(layer: nn.Module) -> ConvolutionLayer:
    inner = layer.inner if isinstance(layer, GinLayer) else layer
    assert isinstance(inner, ConvolutionLayer)
    return inner


def _convolve(layer: ConvolutionLayer, block: Block, products: NDArray[Any], own: SparseRows) -> torch.Tensor:
    what = layer.aggregation
    if what.self_path == "concat":
        what = Aggregation(what.reduce, "none")
    combined = np.empty((block.num_dst, len(layer.weight)), np.float32)
    aggregate_into(what, block, products, combined)
    out = torch.from_numpy(combined)
    if layer.aggregation.self_path == "concat":
        out += sparse_linear(own, layer.weight[:, : layer.in_features])
    out += layer.bias
    return out


def _attend(layer: GatLayer, block: Block, products: NDArray[Any]) -> torch.Tensor:
    heads, width, _ = layer.weight.shape
    per_head = attend(block, products.reshape(-1, heads, width), layer.source, layer.destination)
    out = per_head.mean(0) if layer.average else per_head.transpose(0, 1).reshape(-1, heads * width)
    return out + layer.bias
