"""Compiled loops that transpose a topology; each call processes one range of columns.

All read the edges in order and advance a cursor in each row of the transpose. The edges of a row are
therefore sorted by source and then by edge index, for any choice of ranges.
"""

from __future__ import annotations

import numpy as np

from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def is_own_transpose(indptr, indices, low, high):  # type: ignore[no-untyped-def]
    """Return whether edges u -> v and v -> u match, for all u, v with low <= min(u, v) < high.

    Each row c has a cursor into its edges from higher vertices, which must match the rows i > c in order.
    Returns False if the rows low..high-1 are not sorted.
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
    """Count the edges of each column c, low <= c < high, into counts[c]."""
    counts[low:high] = 0
    for e in range(len(indices)):
        c = indices[e]
        if low <= c < high:
            counts[c] += 1


@_compile
def turn_rows(indptr, indices, t_indptr, low, high, t_indices):  # type: ignore[no-untyped-def]
    """Write rows low..high-1 of the transpose."""
    at = t_indptr[low:high].copy()
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            c = indices[e]
            if low <= c < high:
                t_indices[at[c - low]] = i
                at[c - low] += 1


@_compile
def number_edges(indptr, indices, t_indptr, low, high, edges):  # type: ignore[no-untyped-def]
    """Write the original edge index of each edge in rows low..high-1 of the transpose."""
    at = t_indptr[low:high].copy()
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            c = indices[e]
            if low <= c < high:
                edges[at[c - low]] = e
                at[c - low] += 1
