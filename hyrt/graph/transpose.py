"""Compiled loops that turn a topology round: each call does one range of the columns.

All read the edges in their order and keep a place in each row of the transpose that moves on: so the edges of
such a row come out sorted by their other end, equal ones by number, whatever the ranges are.
"""

from __future__ import annotations

import numpy as np

from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def is_own_transpose(indptr, indices, low, high):  # type: ignore[no-untyped-def]
    """Whether edges u -> v and v -> u pair off, for all u and v of which the lower is from `low` to `high`.

    Each row c keeps a place among its edges from higher vertices, and these come as rows i > c are read. The
    rows from `low` to `high` must be sorted, or the answer is no.
    """
    at = np.empty(high - low, np.int64)
    for c in range(low, high):
        for e in range(indptr[c] + 1, indptr[c + 1]):
            if indices[e] < indices[e - 1]:
                return False
        first, last = indptr[c], indptr[c + 1]
        while first < last:
            middle = (first + last) // 2
            if indices[middle] > c:
                last = middle
            else:
                first = middle + 1
        at[c - low] = first
    for i in range(low, len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            c = indices[e]
            if c >= i or c >= high:
                break
            if c >= low:
                t = at[c - low]
                if t == indptr[c + 1] or indices[t] != i:
                    return False
                at[c - low] = t + 1
    return np.all(at == indptr[low + 1 : high + 1])


@_compile
def count_columns(indices, low, high, counts):  # type: ignore[no-untyped-def]
    """counts[c] = edges of the columns c from `low` to `high`."""
    counts[low:high] = 0
    for e in range(len(indices)):
        c = indices[e]
        if low <= c < high:
            counts[c] += 1


@_compile
def turn_rows(indptr, indices, t_indptr, low, high, t_indices):  # type: ignore[no-untyped-def]
    """Write the rows of the transpose from `low` to `high`."""
    at = t_indptr[low:high].copy()
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            c = indices[e]
            if low <= c < high:
                t_indices[at[c - low]] = i
                at[c - low] += 1


@_compile
def number_edges(indptr, indices, t_indptr, low, high, edges):  # type: ignore[no-untyped-def]
    """Write which edge each one of the transpose's rows from `low` to `high` is."""
    at = t_indptr[low:high].copy()
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            c = indices[e]
            if low <= c < high:
                edges[at[c - low]] = e
                at[c - low] += 1
