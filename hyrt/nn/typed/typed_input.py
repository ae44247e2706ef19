"""The input of a model of a typed graph: rows of several types, each of its own width."""

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
    """Of the sources, which those of a type are a part of."""
    matrices: list[torch.Tensor | None]
    """By type, [n, f] float32 rows of its sources, in their order; None where rows are learned."""
    tables: list[NDArray[Any] | None]
    """By type, [n] its sources' rows of the learned table; None where it has features."""
    device: torch.device | None = None
    """The device that matrices are on; None is the host. Numbers of rows of tables stay on the host."""

    __repr__ = one_line

    @property
    def num_src(self) -> int:
        return len(self.order.order)


@dataclass(slots=True)
class TypedInPlace:
    """The tables of all types where they lie, which the edges of a block read by numbers of vertices."""

    order: TypeOrder
    """Of the destinations."""
    starts: NDArray[np.int64]
    """[T + 1] the first vertex of each type."""
    matrices: list[NDArray[Any] | None]
    """By type, [count, f] all rows, float32 or the bits of float16 as uint16; None where rows are learned."""
    own: list[torch.Tensor | None]
    """By type, [n, f] float32 rows of its destinations, in their order; None where rows are learned."""
    tables: list[NDArray[Any] | None]
    """By type, [n] the distinct rows of the learned table that the block reads, its destinations' first; None
    where it has features."""

    __repr__ = one_line


def with_sources(own: NDArray[Any], ids: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
    """[n] distinct vertices of a type: some, and then those among further ones, ascending.

    Parameters
    ----------
    own
        [m] distinct vertices, numbered within the type.
    ids
        [E] vertices of any type, numbered through all types, with repeats.
    start, stop
        The type's first vertex, and the one after its last.
    """
    of_type = np.unique(ids[(ids >= start) & (ids < stop)]) - ids.dtype.type(start)
    return np.concatenate([own, np.setdiff1d(of_type, own, assume_unique=True)])


@dataclass(slots=True)
class TypePart:
    """The sources of one type, and what makes rows of the hidden width of them."""

    rows: Any
    """[n, f] feature rows, which take no gradient, as an array where all of the type are read in place; or
    [n, hidden] learned rows, which may take one."""
    weight: torch.Tensor | None
    """[hidden, f] the type's map; None where rows are learned, and are what it would give."""
    bias: torch.Tensor | None
    """[hidden], or None."""
    own: torch.Tensor | None = None
    """[m, f] those of the destinations, where they are not the first of `rows`."""
    places: tuple[NDArray[Any], NDArray[Any]] | None = None
    """Of learned rows that edges find by numbers of vertices: the vertices, ascending, and where each is
    among `rows`."""

    __repr__ = one_line


@dataclass(slots=True)
class TypedSources:
    """Rows of a block's sources by type, with the maps that are not applied yet."""

    order: TypeOrder | TensorOrder
    """Of the sources; of the destinations where tables are read in place."""
    parts: list[TypePart]
    """By type."""
    starts: NDArray[np.int64] | None = None
    """[T + 1] the first vertex of each type, where tables are read in place: edges name vertices of the graph
    then. Else None."""

    __repr__ = one_line

    @property
    def num_src(self) -> int:
        return len(self.order.order)

    def __len__(self) -> int:
        return self.num_src
