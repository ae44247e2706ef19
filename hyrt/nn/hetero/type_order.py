"""Orders of vertices by type, on the host and on torch devices, and differentiable row permutations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.graph.row_kernels import gather_rows
from hyrt.nn.operators.autograd import empty, once_differentiable
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.workers import current_workers

_GRAIN = 2048


def take_rows(x: torch.Tensor, rows: Any) -> torch.Tensor:
    """Return x[rows] without a gradient. On the host, the team of the calling thread gathers the rows."""
    if isinstance(rows, torch.Tensor):
        return x.index_select(0, rows)
    source = x.detach().contiguous()
    out = empty((len(rows), *x.shape[1:]), source)
    flat, result = source.flatten(1).numpy(), out.flatten(1).numpy()
    current_workers().run_rows(
        lambda start, stop: gather_rows(flat, rows, result, start, stop), len(rows), _GRAIN
    )
    return out


class _Permuted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, order: Any, places: Any) -> torch.Tensor:
        ctx.places = places
        return take_rows(x, order)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return take_rows(grad, ctx.places), None, None


def permute_rows(x: torch.Tensor, order: Any, places: Any) -> torch.Tensor:
    """Return x[order], differentiably. `places` is the inverse permutation of `order`.

    Both are int32 arrays [n], or tensors if x is on a device.
    """
    return cast(torch.Tensor, _Permuted.apply(x, order, places))  # type: ignore[no-untyped-call]


@nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
def _count_types(starts: Any, ids: Any, types: Any, counts: Any) -> None:
    """Compute the type of each vertex and the number of vertices per type."""
    last = len(starts) - 2
    for i in range(len(ids)):
        low, high = 0, last
        while low < high:
            middle = (low + high + 1) // 2
            if starts[middle] <= ids[i]:
                low = middle
            else:
                high = middle - 1
        types[i] = low
        counts[low] += 1


@nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
def _place_types(types: Any, next_index: Any, order: Any, places: Any) -> None:
    """Sort vertices by type with a stable counting sort."""
    for i in range(len(types)):
        index = next_index[types[i]]
        next_index[types[i]] = index + 1
        order[index] = i
        places[i] = index


@dataclass(frozen=True, slots=True)
class TypeOrder:
    """Order of vertices by type; vertices of equal type keep their order."""

    order: NDArray[np.int32]
    """Original position of each vertex in the new order, [n]."""
    inverse: NDArray[np.int32]
    """New index of each original position, [n]."""
    types: NDArray[Any]
    """Type at each original position, [n] int8, or int32 if there are many types."""
    starts: tuple[int, ...]
    """Start of each type in the new order, [T + 1]."""

    __repr__ = short_repr

    @property
    def sizes(self) -> list[int]:
        """Number of vertices per type, [T]."""
        return [stop - start for start, stop in zip(self.starts[:-1], self.starts[1:], strict=True)]

    def positions_of_type(self, number: int) -> NDArray[np.int32]:
        """Return the original positions of one type in ascending order."""
        return self.order[self.starts[number] : self.starts[number + 1]]


def order_by_type(starts: NDArray[np.int64], ids: NDArray[Any]) -> TypeOrder:
    """Sort the vertices `ids` [n] by type; `starts` [T + 1] is the first vertex of each type."""
    num_types = len(starts) - 1
    types = np.empty(len(ids), np.int8 if num_types < 2**7 else np.int32)
    counts = np.zeros(num_types, np.int64)
    _count_types(starts, ids, types, counts)
    ends = np.cumsum(counts)
    order, places = np.empty(len(ids), np.int32), np.empty(len(ids), np.int32)
    _place_types(types, ends - counts, order, places)
    return TypeOrder(order, places, types, (0, *ends.tolist()))


@dataclass(frozen=True, slots=True)
class TensorOrder:
    """`TypeOrder` with tensors instead of arrays."""

    order: torch.Tensor
    """Original position of each vertex in the new order, [n] int64."""
    inverse: torch.Tensor
    """New index of each original position, [n] int64."""
    starts: tuple[int, ...]
    """Start of each type in the new order, [T + 1]."""

    __repr__ = short_repr

    @property
    def sizes(self) -> list[int]:
        """Number of vertices per type, [T]."""
        return [stop - start for start, stop in zip(self.starts[:-1], self.starts[1:], strict=True)]

    def positions_of_type(self, number: int) -> torch.Tensor:
        """Return the original positions of one type in ascending order."""
        return self.order[self.starts[number] : self.starts[number + 1]]


def order_tensors_by_type(starts: Sequence[int], ids: torch.Tensor) -> TensorOrder:
    """Sort vertices stably by type, like `order_by_type`."""
    borders = torch.tensor(starts, device=ids.device)
    types = torch.searchsorted(borders, ids.long(), right=True) - 1
    kinds, order = torch.sort(types, stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    numbers = torch.arange(len(starts), device=order.device)
    return TensorOrder(order, places, tuple(torch.searchsorted(kinds, numbers).tolist()))
