"""Prefetching the edge lists of non-contiguous rows."""

# mypy: disable-error-code="no-untyped-def,misc,call-arg,unreachable"
from __future__ import annotations

import numpy as np

from hyrt.machine.intrinsics import prefetch
from hyrt.machine.kernels.kept_kernels import nb
from hyrt.nn.whole_graph.rows import AHEAD

# Prefetch distance in rows for a row's edges, and twice that for its indptr: without, sums of 16 columns at
# one vertex in twelve take 1.4 times as long.
_ROWS = 4


@nb.njit(inline="always", cache=True)
def ask_for_edges(indptr, columns, rows, k, stop):
    """Prefetch the indptr of row k + 8 and the edges of row k + 4; the last row is stop - 1."""
    prefetch(indptr, np.int64(rows[min(k + 2 * _ROWS, stop - 1)]))
    upcoming = np.int64(rows[min(k + _ROWS, stop - 1)])
    first = np.int64(indptr[upcoming])
    for e in range(first, min(first + 2 * AHEAD, np.int64(indptr[upcoming + 1])), 64 // columns.itemsize):
        prefetch(columns, e)
