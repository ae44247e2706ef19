"""Compiled loops that gather feature rows. All release the GIL and write disjoint rows.

Feature matrices are float32, float64 or the bits of float16 (uint16).
"""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

import numpy as np

from hyrt.machine.intrinsics import prefetch_row, value
from hyrt.machine.kernels.kept_kernels import nb

# Prefetch distance in rows: enough to hide the memory latency, few enough to stay in the L2 cache.
_AHEAD = 32

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def gather_rows(x, rows, out, start, stop):
    """Compute out[i] = x[rows[i]]."""
    width = x.shape[1]
    flat = x.reshape(x.size)
    for i in range(start, min(start + _AHEAD, stop)):
        prefetch_row(flat, width, np.int64(rows[i]))
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch_row(flat, width, np.int64(rows[i + _AHEAD]))
        a = x[rows[i]]
        o = out[i]
        for k in range(width):
            o[k] = value(a[k])


@_compile
def gather_sparse_rows(indptr, columns, values, rows, out_indptr, out_columns, out_values, start, stop):
    """Copy CSR rows `rows[start:stop]` to the positions in out_indptr."""
    for i in range(start, stop):
        at = out_indptr[i]
        for e in range(indptr[rows[i]], indptr[rows[i] + 1]):
            out_columns[at] = columns[e]
            out_values[at] = values[e]
            at += 1


@_compile
def densify(indptr, columns, values, out, start, stop):
    """Convert sparse rows to dense rows."""
    for i in range(start, stop):
        for k in range(out.shape[1]):
            out[i, k] = 0
        for e in range(indptr[i], indptr[i + 1]):
            out[i, columns[e]] = value(values[e])
