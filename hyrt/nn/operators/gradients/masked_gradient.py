"""The gradient in front of a ReLU, and its sum over rows, in one pass."""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

import numpy as np

from hyrt.machine.kernels.kept_kernels import nb

# Rows that are added up before they join the others: so few numbers lose little when they are rounded.
_ROWS = 32


@nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False, fastmath={"contract", "nsz"})
def mask_gradient(grad, result, out, sums):
    """Write the gradient where a ReLU's result is above zero, and 0 elsewhere, with the sum of each column.

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
    some = np.empty(width, grad.dtype)
    sums[:] = 0
    for first in range(0, rows, _ROWS):
        some[:] = 0
        for i in range(first, min(first + _ROWS, rows)):
            for k in range(width):
                # What is no number stays so.
                value = grad[i, k] if not result[i, k] <= 0 else grad.dtype.type(0)
                out[i, k] = value
                some[k] += value
        for k in range(width):
            sums[k] += some[k]
