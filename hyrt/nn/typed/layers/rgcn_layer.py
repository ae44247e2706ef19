"""R-GCN (Schlichtkrull et al., ESWC 2018)."""

from __future__ import annotations

import torch
from torch import nn

from hyrt.nn.inputs import Rows
from hyrt.nn.layer import Footprint, Layer
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.nn.typed.layers.relation_sums import footprint_row, relation_sums, start_small
from hyrt.nn.typed.typed_shape import TypedShape
from hyrt.sampling.block import Block


class RgcnLayer(Layer):
    """sum_r W_r mean_r(x_j) + W_0 x_i + b, over the relations r into i (equation 2, with c_ir = |N_r(i)|).

    The relations' matrices are free, linear combinations of `bases` shared matrices (equation 3), or
    block-diagonal with `blocks` blocks (equation 4).

    Parameters
    ----------
    in_features, out_features
        Widths of source rows and of the result.
    shape
        The relations.
    bases
        Number of shared matrices; 0 for none.
    blocks
        Number of diagonal blocks, a divisor of both widths; 0 for none.
    low_precision
        Multiply in bfloat16.
    """

    takes_relations = True
    multiplies_weights = True
    takes_types = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        shape: TypedShape,
        *,
        bases: int = 0,
        blocks: int = 0,
        low_precision: bool = False,
    ) -> None:
        super().__init__()
        if bases and blocks:
            raise ValueError("matrices have bases or blocks, not both: give one of the two")
        self.in_features, self.out_features, self.shape = in_features, out_features, shape
        self.low_precision = low_precision
        num = shape.num_relations
        self.coefficients: nn.Parameter | None = None
        if blocks:
            for width in (in_features, out_features):
                if width % blocks:
                    raise ValueError(
                        f"the width {width} is not a multiple of blocks={blocks}: give a divisor"
                    )
            self.weight = nn.Parameter(
                torch.empty(num, blocks, out_features // blocks, in_features // blocks)
            )
        else:
            self.weight = nn.Parameter(torch.empty(bases or num, out_features, in_features))
        if bases:
            self.coefficients = nn.Parameter(torch.empty(num, bases))
            nn.init.xavier_uniform_(self.coefficients)
        self.own = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.zeros(out_features))
        start_small(self.weight, self.own)

    def relation_weights(self) -> torch.Tensor:
        """Return the matrix of each relation, [R, out, in]."""
        if self.coefficients is not None:
            return torch.einsum("rb,boi->roi", self.coefficients, self.weight)
        if self.weight.ndim == 3:
            return self.weight
        num, blocks, out, width = self.weight.shape
        diagonal = torch.eye(blocks, dtype=self.weight.dtype, device=self.weight.device)
        dense = torch.einsum("rboi,bc->rboci", self.weight, diagonal)
        return dense.reshape(num, blocks * out, blocks * width)

    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """Compute [num_dst, out] from the rows of the sources."""
        total = relation_sums(
            *(block, x, self.shape, self.relation_weights(), self.own, self.bias),
            low_precision=self.low_precision,
        )
        return total.relu() if relu else total

    def footprint(self, *, multiplied: bool = False) -> Footprint:
        return Footprint(footprint_row(self.in_features, self.out_features, self.shape.num_relations), 4)
