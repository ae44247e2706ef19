"""How many rows each part sends, once to each other part that has an edge from their vertices."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.partition.dealt_rows import by_home
from hyrt.machine.kernels.kept_kernels import nb


def send_volumes(
    indptr: NDArray[np.int64], indices: NDArray[Any], homes: NDArray[Any], num_parts: int
) -> NDArray[np.int64]:
    """Rows that each part sends in one sparsity-aware product: the paper's communication volume.

    A part needs the row of every vertex that one of its own has an edge from (its non-empty columns), and
    gets each from the part where it is at home.

    Parameters
    ----------
    indptr, indices
        Edges by destination.
    homes
        [V] integers, the part of each vertex.
    num_parts
        The number of parts.

    Returns
    -------
    [num_parts] int64.
    """
    order, bounds = by_home(homes, num_parts)
    sends = np.zeros(num_parts, np.int64)
    last = np.full(len(homes), -1, np.int32)
    for part in range(num_parts):
        _count(indptr, indices, homes, order[bounds[part] : bounds[part + 1]], part, last, sends)
    return sends


@nb.njit(nogil=True, cache=True, error_model="numpy")
def _count(indptr, indices, homes, members, part, last, sends):
    """Count the vertices elsewhere that the members of a part have edges from, at their homes."""
    for v in members:
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if last[u] != part:
                last[u] = part
                if homes[u] != part:
                    sends[homes[u]] += 1
