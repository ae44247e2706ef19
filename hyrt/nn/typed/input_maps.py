"""Projection of rows of several types to one width, with node embeddings for types without features."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from hyrt.nn.operators.product import linear
from hyrt.nn.typed.learned.learned_rows import LearnedRows
from hyrt.nn.typed.permuted_rows import permuted
from hyrt.nn.typed.stacked_products import stacked_products
from hyrt.nn.typed.typed_input import TypedInPlace, TypedInput, TypedSources, TypePart
from hyrt.nn.typed.typed_shape import TypedShape


class InputMaps(nn.Module):
    """Compute W_t x + b_t for vertices of each type t with features; look up embeddings for other vertices.

    Parameters
    ----------
    shape
        The vertex types.
    width
        Columns of the result.
    """

    def __init__(self, shape: TypedShape, width: int) -> None:
        super().__init__()
        self.width = width
        self.maps = nn.ModuleDict()
        self.learned = nn.ModuleDict()
        for number, columns in enumerate(shape.widths):
            if columns is None:
                self.learned[str(number)] = LearnedRows(shape.counts[number], width)
                continue
            linear_layer = nn.Linear(columns, width)
            nn.init.xavier_uniform_(linear_layer.weight)
            nn.init.zeros_(linear_layer.bias)
            self.maps[str(number)] = linear_layer

    def forward(self, x: TypedInput) -> TypedSources:
        """Return the sources with the projections that apply to them; nothing is multiplied yet."""
        parts = []
        for number, (matrix, rows) in enumerate(zip(x.matrices, x.tables, strict=True)):
            if rows is not None:
                table = self.learned[str(number)]
                parts.append(TypePart(table(rows, x.device), None, None))
                continue
            assert matrix is not None
            projection = self.maps[str(number)]
            assert isinstance(projection, nn.Linear)
            parts.append(TypePart(matrix, projection.weight, projection.bias))
        return TypedSources(x.order, parts)

    def in_place(self, x: TypedInPlace) -> TypedSources:
        """Return the tables with the projections that apply to them; nothing is computed yet."""
        parts = []
        for number, (matrix, destination_rows, rows) in enumerate(
            zip(x.matrices, x.own, x.tables, strict=True)
        ):
            if rows is not None:
                ascending = np.argsort(rows)
                places = rows[ascending], ascending.astype(np.int32)
                parts.append(TypePart(self.learned[str(number)](rows), None, None, places=places))
                continue
            projection = self.maps[str(number)]
            assert isinstance(projection, nn.Linear)
            parts.append(TypePart(matrix, projection.weight, projection.bias, destination_rows))
        return TypedSources(x.order, parts, x.starts)


def projected(x: TypedSources, *, low_precision: bool = False) -> torch.Tensor:
    """Project the rows of all sources, [num_src, width], in the order of the sources."""
    projected_parts = []
    for part in x.parts:
        if part.weight is None:
            projected_parts.append(part.rows)
        else:
            projected_parts.append(linear(part.rows, part.weight, part.bias, low_precision=low_precision))
    return permuted(torch.cat(projected_parts), x.order.places, x.order.order)


def typed_linear(
    x: torch.Tensor,
    sizes: list[int],
    weights: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    low_precision: bool,
) -> torch.Tensor:
    """Multiply rows of several types by the matrices of their types.

    Parameters
    ----------
    x
        [n, in], sorted by type.
    sizes
        [T] number of rows per type.
    weights, bias
        [T, out, in] and [T, out].
    low_precision
        Multiply in bfloat16.

    Returns
    -------
    [n, out] in the same order.
    """
    type_weights, type_biases = weights.unbind(), None if bias is None else bias.unbind()
    parts = [
        (rows, type_weights[number], None if type_biases is None else type_biases[number])
        for number, rows in enumerate(torch.split(x, sizes))
        if len(rows)
    ]
    return (
        stacked_products(parts, low_precision=low_precision) if parts else x.new_empty((0, weights.shape[1]))
    )
