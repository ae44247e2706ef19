"""Gradient of a ReLU and its sum over rows, in one pass."""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

import numpy as np

from hyrt.machine.kernels.kept_kernels import nb

# Rows that are summed before they are added to the total, which limits the rounding error.
_ROWS = 32


@nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False, fastmath={"contract", "nsz"})
def mask_gradient(grad, result, out, sums):
    """Write the gradient where a ReLU's result is positive, 0 elsewhere, and the sum of each column.

    Parameters
    ----------
    grad, result
        [n, k] the gradient of the result, and the result.
    out
        [n, k], overwritten.
    sums
        [k], overwritten with the sums of `out` over its rows.
    """
    rows, width = grad.shape
    partial = np.empty(width, grad.dtype)
    sums[:] = 0
    for first in range(0, rows, _ROWS):
        partial[:] = 0
        for i in range(first, min(first + _ROWS, rows)):
            for k in range(width):
                # NaN must stay NaN.
                value = grad[i, k] if not result[i, k] <= 0 else grad.dtype.type(0)
                out[i, k] = value
                partial[k] += value
        for k in range(width):
            sums[k] += partial[k]
