"""Inputs of heterogeneous models: rows of several vertex types, and their projections to one width."""

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
    """Rows of a block's sources, as the load stage gathers them."""

    order: TypeOrder | TensorOrder
    """The sources, sorted by type."""
    matrices: list[torch.Tensor | None]
    """Per type, [n, f] float32 rows of its sources, in their order; None for types with embeddings."""
    tables: list[NDArray[Any] | None]
    """Per type, [n] rows of its sources in the embedding table; None for types with features."""
    device: torch.device | None = None
    """Device of the matrices; None is the host. Row ids of tables stay on the host."""

    __repr__ = short_repr

    @property
    def num_src(self) -> int:
        return len(self.order.order)


@dataclass(slots=True)
class HeteroInPlaceInput:
    """Feature tables of all types, which a block's edges read in place by vertex id."""

    order: TypeOrder
    """The destinations, sorted by type."""
    starts: NDArray[np.int64]
    """[T + 1] the first vertex of each type."""
    matrices: list[NDArray[Any] | None]
    """Per type, [count, f] all rows, float32 or float16 bits as uint16; None for types with embeddings."""
    destination_rows: list[torch.Tensor | None]
    """Per type, [n, f] float32 rows of its destinations, in their order; None for types with embeddings."""
    tables: list[NDArray[Any] | None]
    """Per type, [n] distinct embedding rows of a block, destinations first; None for types with features."""

    __repr__ = short_repr


def append_sources(destinations: NDArray[Any], ids: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
    """Append the distinct sources of a vertex type, ascending, to its distinct `destinations`.

    `ids` [E] are source ids of all types, with repeats; the type has the ids from `start` to `stop` - 1.
    Destinations and result are numbered within the type.
    """
    of_type = np.unique(ids[(ids >= start) & (ids < stop)]) - ids.dtype.type(start)
    return np.concatenate([destinations, np.setdiff1d(of_type, destinations, assume_unique=True)])


@dataclass(slots=True)
class TypeSources:
    """Sources of one type, and the projection of their rows to the hidden width."""

    rows: Any
    """[n, f] features without gradient (an array if read in place), or [n, hidden] embeddings."""
    weight: torch.Tensor | None
    """[hidden, f] projection of the type; None for embeddings, which have the hidden width already."""
    bias: torch.Tensor | None
    destination_rows: torch.Tensor | None = None
    """[m, f] rows of the destinations, if they are not the first of `rows`."""
    positions: tuple[NDArray[Any], NDArray[Any]] | None = None
    """For embeddings that are read by vertex id: the vertices, ascending, and their indices in `rows`."""

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
    """Projection W_t x + b_t of each vertex type t with features to `width` columns.

    Types without features have embeddings of this width.
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
        """Return the sources with the projections to apply to them; nothing is multiplied yet."""
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
        """Return the tables with the projections to apply to them; nothing is computed yet."""
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
    """Multiply rows [n, in], sorted by type, by the matrices of their types, as [n, out].

    `sizes` [T] has the number of rows per type, `weights` is [T, out, in], and `bias` is [T, out] or None.
    `low_precision` multiplies in bfloat16.
    """
    type_weights, type_biases = weights.unbind(), None if bias is None else bias.unbind()
    parts = [
        (rows, type_weights[number], None if type_biases is None else type_biases[number])
        for number, rows in enumerate(torch.split(x, sizes))
        if len(rows)
    ]
    return grouped_linear(parts, low_precision=low_precision) if parts else x.new_empty((0, weights.shape[1]))
