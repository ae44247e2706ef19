"""Asking for the edges of rows that do not follow each other, before they are read."""

# mypy: disable-error-code="no-untyped-def,misc,call-arg,unreachable"
from __future__ import annotations

import numpy as np

from hyrt.machine.intrinsics import prefetch
from hyrt.machine.kernels.kept_kernels import nb
from hyrt.nn.whole_graph.rows import AHEAD

# Rows between asking for a row's edges and reading them, and as many before that for where they lie: sums at
# one vertex in twelve, of 16 columns, take 1.4 times as long without.
_ROWS = 4


@nb.njit(inline="always", cache=True)
def ask_for_edges(indptr, columns, rows, k, stop):
    """Ask for where row k + 8 has its edges, and for those of row k + 4; rows end before `stop`."""
    prefetch(indptr, np.int64(rows[min(k + 2 * _ROWS, stop - 1)]))
    coming = np.int64(rows[min(k + _ROWS, stop - 1)])
    first = np.int64(indptr[coming])
    for e in range(first, min(first + 2 * AHEAD, np.int64(indptr[coming + 1])), 64 // columns.itemsize):
        prefetch(columns, e)
