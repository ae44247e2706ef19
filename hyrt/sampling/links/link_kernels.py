"""Compiled loops that take edges out of drawn neighbours. All release the interpreter lock."""

# mypy: disable-error-code="no-untyped-def", disallow-untyped-decorators=False
from __future__ import annotations

import numpy as np

from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def find_excluded(vertices, offsets, neighbors, types, rows, starts, codes, new_offsets, dropped):
    """Find excluded edges among sampled ones, and the offsets of the neighbours without them.

    Returns
    -------
    How many of `dropped` were written.
    """
    num = 0
    new_offsets[0] = 0
    for i in range(len(vertices)):
        row = rows[vertices[i]]
        if row >= 0:
            for e in range(offsets[i], offsets[i + 1]):
                code = np.int64(neighbors[e])
                if types is not None:
                    code += np.int64(types[e]) * len(rows)
                low, high = starts[row], starts[row + 1]
                while low < high:
                    middle = (low + high) >> 1
                    if codes[middle] < code:
                        low = middle + 1
                    else:
                        high = middle
                if low < starts[row + 1] and codes[low] == code:
                    dropped[num] = e
                    num += 1
        new_offsets[i + 1] = offsets[i + 1] - num
    return num


@_compile
def close_gaps(values, dropped):
    """Move `values` together, in place, over the positions that are dropped: sorted, and at least one."""
    at = dropped[0]
    for k in range(len(dropped)):
        end = dropped[k + 1] if k + 1 < len(dropped) else len(values)
        for e in range(dropped[k] + 1, end):
            values[at] = values[e]
            at += 1
