"""The input of a model of a typed graph: rows of several types, each of its own width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
class TypePart:
    """The sources of one type, and what makes rows of the hidden width of them."""

    rows: torch.Tensor
    """[n, f] feature rows, which take no gradient; or [n, hidden] learned rows, which may."""
    weight: torch.Tensor | None
    """[hidden, f] the type's map; None where rows are learned, and are what it would give."""
    bias: torch.Tensor | None
    """[hidden], or None."""

    __repr__ = one_line


@dataclass(slots=True)
class TypedSources:
    """Rows of a block's sources by type, with the maps that are not applied yet."""

    order: TypeOrder | TensorOrder
    """Of the sources."""
    parts: list[TypePart]
    """By type."""

    __repr__ = one_line

    @property
    def num_src(self) -> int:
        return len(self.order.order)

    def __len__(self) -> int:
        return self.num_src
