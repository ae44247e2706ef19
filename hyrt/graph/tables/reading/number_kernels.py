"""Compiled parser of whole numbers that accepts only the canonical spelling."""

from __future__ import annotations

import numpy as np

from hyrt.runtime.numba_cache import nb

_MINUS, _ZERO, _NINE = 45, 48, 57
_MAX_DIGITS = 18


@nb.njit(nogil=True, cache=True, boundscheck=False)
def read_whole(data, offsets, missing, decimal, values, bad):  # type: ignore[no-untyped-def]
    """Parse strings [n] into values [n] int64; set bad [n] for strings that are not canonical whole numbers.

    `007`, `+1`, `-0`, ` 7` and non-ASCII digits are not canonical. A decimal point followed by zeros is
    accepted, because programs write 3.0 for 3.
    """
    for n in range(len(values)):
        values[n] = 0
        bad[n] = False
        if missing[n]:
            continue
        i, last = offsets[n], offsets[n + 1]
        is_negative = i < last and data[i] == _MINUS
        i += is_negative
        first, value = i, np.int64(0)
        while i < last and _ZERO <= data[i] <= _NINE and i - first <= _MAX_DIGITS:
            value = value * 10 + (data[i] - _ZERO)
            i += 1
        digits = i - first
        is_good = 0 < digits <= _MAX_DIGITS
        if is_good and data[first] == _ZERO:
            is_good = digits == 1 and not is_negative
        if i < last:
            is_good = is_good and data[i] == decimal
            for j in range(i + 1, last):
                is_good = is_good and data[j] == _ZERO
        if is_good:
            values[n] = -value if is_negative else value
        else:
            bad[n] = True
