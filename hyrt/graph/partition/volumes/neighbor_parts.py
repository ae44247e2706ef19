"""For each vertex, the parts of its out-neighbours, kept current while vertices move."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.kernels.kept_kernels import nb

_jit = nb.njit(nogil=True, cache=True, error_model="numpy")


class NeighborParts:
    """For each vertex, the parts that its out-neighbours are in, and how many are in each.

    A vertex has room for as many parts as it has out-neighbours, or as there are: 6 bytes an edge at most.

    Parameters
    ----------
    indptr, indices
        Edges by destination.
    homes
        [V] int32, the part of each vertex.
    num_parts
        The number of parts.
    """

    def __init__(
        self, indptr: NDArray[np.int64], indices: NDArray[Any], homes: NDArray[np.int32], num_parts: int
    ) -> None:
        out_degrees = np.bincount(indices, minlength=len(homes))
        self.starts = np.zeros(len(homes) + 1, np.int64)
        np.cumsum(np.minimum(out_degrees, num_parts), out=self.starts[1:])
        self.parts = np.empty(self.starts[-1], np.int16)
        self.counts = np.empty(self.starts[-1], np.int32)
        self.used = np.zeros(len(homes), np.int32)
        """[V] how many places of each vertex are taken."""
        _fill(indptr, indices, homes, self.starts, self.parts, self.counts, self.used)


@_jit
def add_neighbor(starts, parts, counts, used, u, part):
    """Count one more out-neighbour of u in a part; whether it is the first."""
    first = starts[u]
    for i in range(first, first + used[u]):
        if parts[i] == part:
            counts[i] += 1
            return False
    parts[first + used[u]] = part
    counts[first + used[u]] = 1
    used[u] += 1
    return True


@_jit
def remove_neighbor(starts, parts, counts, used, u, part):
    """Count one out-neighbour of u less in a part; whether it was the last."""
    first = starts[u]
    for i in range(first, first + used[u]):
        if parts[i] == part:
            counts[i] -= 1
            if counts[i]:
                return False
            last = first + used[u] - 1
            parts[i] = parts[last]
            counts[i] = counts[last]
            used[u] -= 1
            return True
    return False


@_jit
def _fill(indptr, indices, homes, starts, parts, counts, used):
    for v in range(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            add_neighbor(starts, parts, counts, used, indices[e], homes[v])


@_jit
def count_traffic(starts, parts, used, homes, num_parts):
    """Return [2 num_parts] int64: the rows that each part sends, then the rows that each receives."""
    traffic = np.zeros(2 * num_parts, np.int64)
    for u in range(len(homes)):
        for i in range(starts[u], starts[u] + used[u]):
            if parts[i] != homes[u]:
                traffic[homes[u]] += 1
                traffic[num_parts + parts[i]] += 1
    return traffic
