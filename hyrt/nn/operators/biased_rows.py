"""A bias, and optionally a ReLU, in one pass over rows that are in cache."""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

from hyrt.machine.kernels.kept_kernels import nb


@nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
def add_bias(rows, bias, relu):
    """Add a bias [k] to each row of [n, k] in place; with `relu`, also apply a ReLU."""
    zero = rows.dtype.type(0)
    for i in range(rows.shape[0]):
        row = rows[i]
        if relu:
            for k in range(row.shape[0]):
                value = row[k] + bias[k]
                # NaN must stay NaN.
                row[k] = zero if value <= zero else value
        else:
            for k in range(row.shape[0]):
                row[k] += bias[k]
