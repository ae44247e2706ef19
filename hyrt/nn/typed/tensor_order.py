"""Vertices sorted by type on a torch device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True)
class TensorOrder:
    """The fields of `hyrt.nn.typed.type_order.TypeOrder` as tensors."""

    order: torch.Tensor
    """[n] int64 the original position of each vertex in the new order."""
    places: torch.Tensor
    """[n] int64 the inverse: the new index of each original position."""
    starts: tuple[int, ...]
    """[T + 1] the start of each type in the new order."""

    __repr__ = one_line

    @property
    def sizes(self) -> list[int]:
        """[T] number of vertices per type."""
        return [stop - start for start, stop in zip(self.starts[:-1], self.starts[1:], strict=True)]

    def of(self, number: int) -> torch.Tensor:
        """Return the positions of one type, ascending."""
        return self.order[self.starts[number] : self.starts[number + 1]]


def order_tensors_by_type(starts: Sequence[int], ids: torch.Tensor) -> TensorOrder:
    """Sort vertices by type with a stable sort, like `hyrt.nn.typed.type_order.order_by_type`."""
    borders = torch.tensor(starts, device=ids.device)
    types = torch.searchsorted(borders, ids.long(), right=True) - 1
    kinds, order = torch.sort(types, stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    numbers = torch.arange(len(starts), device=order.device)
    return TensorOrder(order, places, tuple(torch.searchsorted(kinds, numbers).tolist()))
