"""Vertices sorted by type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.kernels.kept_kernels import nb
from hyrt.quantities import one_line


@nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
def _count_types(starts: Any, ids: Any, types: Any, counts: Any) -> None:
    """Compute the type of each vertex, and the number of vertices per type."""
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
    """Sort by type with a stable counting sort."""
    for i in range(len(types)):
        index = next_index[types[i]]
        next_index[types[i]] = index + 1
        order[index] = i
        places[i] = index


@dataclass(frozen=True, slots=True)
class TypeOrder:
    """Positions in an array of vertices, sorted by type and then by position."""

    order: NDArray[np.int32]
    """[n] the original position of each vertex in the new order."""
    places: NDArray[np.int32]
    """[n] the inverse: the new index of each original position."""
    types: NDArray[Any]
    """[n] int8, or int32 if there are many types: the type at each original position."""
    starts: tuple[int, ...]
    """[T + 1] the start of each type in the new order."""

    __repr__ = one_line

    @property
    def sizes(self) -> list[int]:
        """[T] number of vertices per type."""
        return [stop - start for start, stop in zip(self.starts[:-1], self.starts[1:], strict=True)]

    def of(self, number: int) -> NDArray[np.int32]:
        """Return the positions of one type, ascending."""
        return self.order[self.starts[number] : self.starts[number + 1]]


def order_by_type(starts: NDArray[np.int64], ids: NDArray[Any]) -> TypeOrder:
    """Sort vertices by type.

    Parameters
    ----------
    starts
        [T + 1] the first vertex of each type.
    ids
        [n] vertices.
    """
    num_types = len(starts) - 1
    types = np.empty(len(ids), np.int8 if num_types < 2**7 else np.int32)
    counts = np.zeros(num_types, np.int64)
    _count_types(starts, ids, types, counts)
    ends = np.cumsum(counts)
    order, places = np.empty(len(ids), np.int32), np.empty(len(ids), np.int32)
    _place_types(types, ends - counts, order, places)
    return TypeOrder(order, places, types, (0, *ends.tolist()))
