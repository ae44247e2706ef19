"""Gradient of the weight matrix in a product with sparse rows."""

# mypy: disable-error-code="no-untyped-def,call-arg,var-annotated,unreachable"
from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.intrinsics import prefetch
from hyrt.machine.kernels.kept_kernels import nb
from hyrt.machine.workers import Workers
from hyrt.nn.operators.result_memory import empty_array
from hyrt.nn.operators.tiled_transpose import transpose_into
from hyrt.nn.whole_graph import vectors
from hyrt.nn.whole_graph.rows import column_passes

Array = NDArray[Any]

# Minimum number of gradient columns per thread; each thread passes over all entries.
_MIN_STRIPE = 32
_AHEAD = 16


@cache
def _kernel(lanes: int) -> Any:
    """Compile the loop for `lanes` columns."""

    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def add_rows(indptr, columns, values, grad, width, start, sums, stripe, at, used):
        line = 64 // sums.itemsize
        final = indptr[-1] - 1
        for i in range(len(indptr) - 1):
            row = vectors.load(grad, i * width + start + at, lanes, used)
            for e in range(indptr[i], indptr[i + 1]):
                later = np.int64(columns[min(e + _AHEAD, final)]) * stripe + at
                for s in range(0, lanes if used is None else used, line):
                    prefetch(sums, later + s)
                to = np.int64(columns[e]) * stripe + at
                total = vectors.add(vectors.load(sums, to, lanes, used), vectors.scaled(row, values[e]))
                vectors.store(sums, to, total, used)

    return add_rows


def weight_gradient_into(
    indptr: Array, columns: Array, values: Array, grad: Array, out: Array, workers: Workers
) -> None:
    """Write the product of transposed rows and sparse rows.

    out[k, c] = sum of values[e] * grad[i, k] over the entries e of column c, in the order of their rows i.
    The result has the same bits for any number of threads: each thread sums different rows of `out`.

    Parameters
    ----------
    indptr, columns, values
        [n + 1], [nnz] integers and [nnz] of grad's dtype: the sparse rows as CSR.
    grad
        [n, k] float32 or float64, C-contiguous.
    out
        [k, f], C-contiguous, of grad's dtype; overwritten.
    workers
        The team of threads.
    """
    # One compiled loop serves all integer types.
    indptr = indptr.astype(np.int64, copy=False)
    width, rows = grad.shape[1], grad.reshape(-1)
    # Each thread has one contiguous stripe: cores that write to the same cache line, or to lines that the
    # processor prefetches together, took three to five times as long as one thread.
    stripes = empty_array(out.size, out.dtype)

    def work(start: int, stop: int) -> None:
        stripe = stop - start
        sums = stripes[start * out.shape[1] : stop * out.shape[1]]
        sums[:] = 0
        for at, lanes, used in column_passes(stripe):
            _kernel(lanes)(indptr, columns, values, rows, width, start, sums, stripe, at, used)
        transpose_into(sums.reshape(-1, stripe), out[start:stop])

    workers.run_rows(work, width, max(_MIN_STRIPE, -(-width // workers.count)))
