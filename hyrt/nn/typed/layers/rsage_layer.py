"""R-GraphSAGE: a GraphSAGE mean layer per relation, summed over relations."""

from __future__ import annotations

import torch
from torch import nn

from hyrt.nn.inputs import Rows
from hyrt.nn.layer import Footprint, Layer
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.nn.typed.layers.relation_sums import footprint_row, relation_sums, start_small
from hyrt.nn.typed.typed_shape import TypedShape
from hyrt.sampling.block import Block


class RsageLayer(Layer):
    """sum_r W_r mean_r(x_j) + V_t x_i + b, over the relations r into i, whose type is t.

    GraphSAGE has a matrix for the own row in addition to each W_r; the sum of these matrices over all
    relations into a type is one matrix V_t.

    Parameters
    ----------
    in_features, out_features
        Widths of source rows and of the result.
    shape
        The types and relations.
    low_precision
        Multiply in bfloat16.
    """

    takes_relations = True
    multiplies_weights = True
    takes_types = True

    def __init__(
        self, in_features: int, out_features: int, shape: TypedShape, *, low_precision: bool = False
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.shape = in_features, out_features, shape
        self.low_precision = low_precision
        self.weight = nn.Parameter(torch.empty(shape.num_relations, out_features, in_features))
        self.own = nn.Parameter(torch.empty(len(shape.types), out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        start_small(self.weight, self.own)

    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """Compute [num_dst, out] from the rows of the sources."""
        total = relation_sums(
            *(block, x, self.shape, self.weight, self.own, self.bias), low_precision=self.low_precision
        )
        return total.relu() if relu else total

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        return Footprint(footprint_row(self.in_features, self.out_features, self.shape.num_relations), 4)
