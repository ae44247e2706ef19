"""Input of a model of a heterogeneous graph: rows of several types, each with its width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.nn.typed.tensor_order import TensorOrder
from hyrt.nn.typed.type_order import TypeOrder
from hyrt.quantities import one_line


@dataclass(slots=True)
class TypedInput:
    """The rows of a block's sources, as the load stage gathers them."""

    order: TypeOrder | TensorOrder
    """The sources, sorted by type."""
    matrices: list[torch.Tensor | None]
    """Per type, [n, f] float32 rows of its sources, in their order; None for types with embeddings."""
    tables: list[NDArray[Any] | None]
    """Per type, [n] its sources' rows of the embedding table; None for types with features."""
    device: torch.device | None = None
    """The device of the matrices; None is the host. Row ids of tables stay on the host."""

    __repr__ = one_line

    @property
    def num_src(self) -> int:
        return len(self.order.order)


@dataclass(slots=True)
class TypedInPlace:
    """The feature tables of all types in place, which a block's edges read by vertex id."""

    order: TypeOrder
    """The destinations, sorted by type."""
    starts: NDArray[np.int64]
    """[T + 1] the first vertex of each type."""
    matrices: list[NDArray[Any] | None]
    """Per type, [count, f] all rows, float32 or float16 bits as uint16; None for types with embeddings."""
    own: list[torch.Tensor | None]
    """Per type, [n, f] float32 rows of its destinations, in their order; None for types with embeddings."""
    tables: list[NDArray[Any] | None]
    """Per type, [n] the distinct embedding rows that the block reads, its destinations' first; None for types
    with features.
    """

    __repr__ = one_line


def with_sources(own: NDArray[Any], ids: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
    """Append the sources of a type to its destinations: [n] distinct vertices, the sources ascending.

    Parameters
    ----------
    own
        [m] distinct destinations, numbered within the type.
    ids
        [E] source ids of all types, numbered through all types, with repeats.
    start, stop
        The range of the type's vertices.
    """
    of_type = np.unique(ids[(ids >= start) & (ids < stop)]) - ids.dtype.type(start)
    return np.concatenate([own, np.setdiff1d(of_type, own, assume_unique=True)])


@dataclass(slots=True)
class TypePart:
    """The sources of one type, and the projection of their rows to the hidden width."""

    rows: Any
    """[n, f] feature rows, which have no gradient, as an array if all rows of the type are read in place; or
    [n, hidden] embeddings, which may have a gradient.
    """
    weight: torch.Tensor | None
    """[hidden, f] the type's projection; None for embeddings, which have the hidden width already."""
    bias: torch.Tensor | None
    """[hidden], or None."""
    own: torch.Tensor | None = None
    """[m, f] rows of the destinations, if they are not the first of `rows`."""
    places: tuple[NDArray[Any], NDArray[Any]] | None = None
    """For embeddings that edges read by vertex id: the vertices, ascending, and the index of each in `rows`.
    """

    __repr__ = one_line


@dataclass(slots=True)
class TypedSources:
    """Rows of a block's sources by type, with projections that are not applied yet."""

    order: TypeOrder | TensorOrder
    """The sources sorted by type; the destinations if tables are read in place."""
    parts: list[TypePart]
    """One part per type."""
    starts: NDArray[np.int64] | None = None
    """[T + 1] the first vertex of each type if tables are read in place by vertex id; otherwise None."""

    __repr__ = one_line

    @property
    def num_src(self) -> int:
        return len(self.order.order)

    def __len__(self) -> int:
        return self.num_src
