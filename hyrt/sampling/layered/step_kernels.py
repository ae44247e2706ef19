"""Compiled loops that cut rows out of a step's edges. All release the interpreter lock."""

# mypy: disable-error-code="no-untyped-def", disallow-untyped-decorators=False
from __future__ import annotations

from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def copy_rows(offsets, values, rows, new_offsets, start, stop, out):
    """Copy row rows[i] of `values` to row i of `out`, for i of start..stop-1; both are in CSR order."""
    for i in range(start, stop):
        at = new_offsets[i]
        for e in range(offsets[rows[i]], offsets[rows[i] + 1]):
            out[at] = values[e]
            at += 1
