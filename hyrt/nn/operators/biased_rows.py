"""A bias, and a ReLU, in one pass over rows that are in cache."""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

from hyrt.machine.kernels.kept_kernels import nb


@nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
def add_bias(rows, bias, relu):
    """Add a bias [k] to each of the rows [n, k], in place; then, where asked for, take its positive part."""
    zero = rows.dtype.type(0)
    for i in range(rows.shape[0]):
        row = rows[i]
        if relu:
            for k in range(row.shape[0]):
                value = row[k] + bias[k]
                # What is no number stays so.
                row[k] = zero if value <= zero else value
        else:
            for k in range(row.shape[0]):
                row[k] += bias[k]
