"""The gradient of a weight matrix that sparse rows were multiplied by."""

# mypy: disable-error-code="no-untyped-def,call-arg,var-annotated,unreachable"
from __future__ import annotations

from functools import cache
from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from hyrt.machine.intrinsics import prefetch
from hyrt.machine.workers import Workers
from hyrt.nn.whole_graph import vectors
from hyrt.nn.whole_graph.rows import column_passes

Array = NDArray[Any]

# The fewest columns of the gradient that a thread adds up. Each thread passes over all entries.
_LEAST_STRIPE = 32
_AHEAD = 16


@cache
def _kernel(lanes: int) -> Any:
    """The loop for `lanes` columns."""

    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def add_rows(indptr, columns, values, grad, out, width, at, used):
        line = 64 // out.itemsize
        final = indptr[-1] - 1
        for i in range(len(indptr) - 1):
            row = vectors.load(grad, i * width + at, lanes, used)
            for e in range(indptr[i], indptr[i + 1]):
                later = np.int64(columns[min(e + _AHEAD, final)]) * width + at
                for s in range(0, lanes if used is None else used, line):
                    prefetch(out, later + s)
                to = np.int64(columns[e]) * width + at
                total = vectors.add(vectors.load(out, to, lanes, used), vectors.scaled(row, values[e]))
                vectors.store(out, to, total, used)

    return add_rows


def add_products(
    indptr: Array, columns: Array, values: Array, grad: Array, out: Array, workers: Workers
) -> None:
    """Write the product of transposed sparse rows and rows.

    out[c] = sum of values[e] * grad[i] over the entries e of column c, in the order of their rows i: so the
    result has the same bits for any number of threads, each of which adds up other columns of `out`.

    Parameters
    ----------
    indptr, columns, values
        [n + 1], [nnz] integers and [nnz] of grad's dtype: the sparse rows as CSR.
    grad
        [n, k] float32 or float64, C-contiguous.
    out
        [f, k], C-contiguous, of grad's dtype; overwritten.
    workers
        The team of threads.
    """
    width = grad.shape[1]
    rows, sums = grad.reshape(-1), out.reshape(-1)

    def work(start: int, stop: int) -> None:
        out[:, start:stop] = 0
        for at, lanes, used in column_passes(stop - start):
            _kernel(lanes)(indptr, columns, values, rows, sums, width, start + at, used)

    workers.run(work, width, max(_LEAST_STRIPE, -(-width // workers.count)))
