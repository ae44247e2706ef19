"""A model of differences, for `hyrt run ... model.kind=contrast model.options='{strength: 0.5}'`."""

from __future__ import annotations

import torch
from torch import nn

from hyrt.nn.architecture import Architecture
from hyrt.nn.layer import Footprint, Layer, Rows, destination_rows, source_rows
from hyrt.nn.models.model_kind import ModelKind
from hyrt.nn.operators.aggregate import aggregate
from hyrt.nn.operators.linear import linear
from hyrt.nn.operators.sparse import SparseRows
from hyrt.sampling.block import Block


class ContrastLayer(Layer):
    """W (x_i - strength * mean of x_j) + b: what sets a vertex apart from its neighbours."""

    def __init__(self, in_features: int, out_features: int, strength: float) -> None:
        super().__init__()
        self.strength = strength
        self.product = nn.Linear(in_features, out_features)

    def forward(self, block: Block, x: Rows, *, relu: bool = False) -> torch.Tensor:
        own = destination_rows(block, x)
        own = own.to_dense() if isinstance(own, SparseRows) else own
        difference = own - self.strength * aggregate(block, source_rows(x), "mean")
        return linear(difference, self.product.weight, self.product.bias, relu=relu)

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        # The mean, times the strength, the own row, their difference; and the product.
        return Footprint(4 * self.product.in_features + self.product.out_features)


class Contrast(ModelKind):
    """Layers of differences; in memory and time much like GCN's."""

    costs_like = "gcn"

    def layer(
        self,
        architecture: Architecture,
        in_features: int,
        out_features: int,
        *,
        last: bool,
        strength: float = 1.0,
    ) -> ContrastLayer:
        return ContrastLayer(in_features, out_features, strength)
