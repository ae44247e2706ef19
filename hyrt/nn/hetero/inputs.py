"""Inputs of heterogeneous models: feature rows of several types and widths, and the linear projections to one
width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hyrt.formatting import short_repr
from hyrt.nn.hetero.graph_metadata import GraphMetadata
from hyrt.nn.hetero.node_embedding import NodeEmbedding
from hyrt.nn.hetero.type_order import TensorOrder, TypeOrder, permute_rows
from hyrt.nn.operators.linear import grouped_linear, linear


@dataclass(slots=True)
class HeteroInput:
    """The rows of a block's sources, as the load stage gathers them."""

    order: TypeOrder | TensorOrder
    """The sources, sorted by type."""
    matrices: list[torch.Tensor | None]
    """Per type, [n, f] float32 rows of its sources, in their order; None for types with embeddings."""
    tables: list[NDArray[Any] | None]
    """Per type, [n] its sources' rows of the embedding table; None for types with features."""
    device: torch.device | None = None
    """The device of the matrices; None is the host. Row ids of tables stay on the host."""

    __repr__ = short_repr

    @property
    def num_src(self) -> int:
        return len(self.order.order)


@dataclass(slots=True)
class HeteroInPlaceInput:
    """The feature tables of all types in place, which a block's edges read by vertex id."""

    order: TypeOrder
    """The destinations, sorted by type."""
    starts: NDArray[np.int64]
    """[T + 1] the first vertex of each type."""
    matrices: list[NDArray[Any] | None]
    """Per type, [count, f] all rows, float32 or float16 bits as uint16; None for types with embeddings."""
    destination_rows: list[torch.Tensor | None]
    """Per type, [n, f] float32 rows of its destinations, in their order; None for types with embeddings."""
    tables: list[NDArray[Any] | None]
    """Per type, [n] the distinct embedding rows that the block reads, its destinations' first; None for types
    with features.
    """

    __repr__ = short_repr


def append_sources(destinations: NDArray[Any], ids: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
    """Append the sources of a type to its destinations: [n] distinct vertices, the sources ascending.

    Parameters
    ----------
    destinations
        [m] distinct destinations, numbered within the type.
    ids
        [E] source ids of all types, numbered through all types, with repeats.
    start, stop
        The range of the type's vertices.
    """
    of_type = np.unique(ids[(ids >= start) & (ids < stop)]) - ids.dtype.type(start)
    return np.concatenate([destinations, np.setdiff1d(of_type, destinations, assume_unique=True)])


@dataclass(slots=True)
class TypeSources:
    """The sources of one type, and the projection of their rows to the hidden width."""

    rows: Any
    """[n, f] feature rows, which have no gradient, as an array if all rows of the type are read in place; or
    [n, hidden] embeddings, which may have a gradient.
    """
    weight: torch.Tensor | None
    """[hidden, f] the type's projection; None for embeddings, which have the hidden width already."""
    bias: torch.Tensor | None
    """[hidden], or None."""
    destination_rows: torch.Tensor | None = None
    """[m, f] rows of the destinations, if they are not the first of `rows`."""
    positions: tuple[NDArray[Any], NDArray[Any]] | None = None
    """For embeddings that edges read by vertex id: the vertices, ascending, and the index of each in `rows`.
    """

    __repr__ = short_repr


@dataclass(slots=True)
class HeteroSources:
    """Rows of a block's sources by type, with projections that are not applied yet."""

    order: TypeOrder | TensorOrder
    """The sources sorted by type; the destinations if tables are read in place."""
    parts: list[TypeSources]
    """One part per type."""
    starts: NDArray[np.int64] | None = None
    """[T + 1] the first vertex of each type if tables are read in place by vertex id; otherwise None."""

    __repr__ = short_repr

    @property
    def num_src(self) -> int:
        return len(self.order.order)

    def __len__(self) -> int:
        return self.num_src


class HeteroInputProjection(nn.Module):
    """Compute W_t x + b_t for vertices of each type t with features; look up embeddings for other vertices.

    Parameters
    ----------
    shape
        The vertex types.
    width
        Columns of the result.
    """

    def __init__(self, shape: GraphMetadata, width: int) -> None:
        super().__init__()
        self.width = width
        self.maps = nn.ModuleDict()
        self.learned = nn.ModuleDict()
        for number, columns in enumerate(shape.widths):
            if columns is None:
                self.learned[str(number)] = NodeEmbedding(shape.counts[number], width)
                continue
            linear_layer = nn.Linear(columns, width)
            nn.init.xavier_uniform_(linear_layer.weight)
            nn.init.zeros_(linear_layer.bias)
            self.maps[str(number)] = linear_layer

    def forward(self, x: HeteroInput) -> HeteroSources:
        """Return the sources with the projections that apply to them; nothing is multiplied yet."""
        parts = []
        for number, (matrix, rows) in enumerate(zip(x.matrices, x.tables, strict=True)):
            if rows is not None:
                table = self.learned[str(number)]
                parts.append(TypeSources(table(rows, x.device), None, None))
                continue
            assert matrix is not None
            projection = self.maps[str(number)]
            assert isinstance(projection, nn.Linear)
            parts.append(TypeSources(matrix, projection.weight, projection.bias))
        return HeteroSources(x.order, parts)

    def forward_in_place(self, x: HeteroInPlaceInput) -> HeteroSources:
        """Return the tables with the projections that apply to them; nothing is computed yet."""
        parts = []
        for number, (matrix, destination_rows, rows) in enumerate(
            zip(x.matrices, x.destination_rows, x.tables, strict=True)
        ):
            if rows is not None:
                ascending = np.argsort(rows)
                places = rows[ascending], ascending.astype(np.int32)
                parts.append(TypeSources(self.learned[str(number)](rows), None, None, positions=places))
                continue
            projection = self.maps[str(number)]
            assert isinstance(projection, nn.Linear)
            parts.append(TypeSources(matrix, projection.weight, projection.bias, destination_rows))
        return HeteroSources(x.order, parts, x.starts)


def project_sources(x: HeteroSources, *, low_precision: bool = False) -> torch.Tensor:
    """Project the rows of all sources, [num_src, width], in the order of the sources."""
    projected_parts = []
    for part in x.parts:
        if part.weight is None:
            projected_parts.append(part.rows)
        else:
            projected_parts.append(linear(part.rows, part.weight, part.bias, low_precision=low_precision))
    return permute_rows(torch.cat(projected_parts), x.order.inverse, x.order.order)


def hetero_linear(
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
    return grouped_linear(parts, low_precision=low_precision) if parts else x.new_empty((0, weights.shape[1]))
