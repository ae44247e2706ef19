"""Compiled loops over edges, CSR rows and their transpose. All release the GIL and write only their given
range.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import GOLDEN, mix64

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def find_invalid_edge(sources, targets, bound):
    """Return the first edge with an endpoint outside 0..bound-1, or -1."""
    for i in range(len(sources)):
        if sources[i] < 0 or sources[i] >= bound or targets[i] < 0 or targets[i] >= bound:
            return i
    return -1


@_compile
def count_edges(sources, targets, symmetric, self_loops, counts):
    """Add each target's entries to counts [V], or both ends' entries if symmetric; a self loop counts at most
    once.
    """
    for i in range(len(sources)):
        u, v = sources[i], targets[i]
        if u != v or self_loops:
            counts[v] += 1
            if symmetric and u != v:
                counts[u] += 1


@_compile
def scatter_edges(sources, targets, symmetric, self_loops, low, high, cursor, entries):
    """Write the edges into vertices low..high-1 at their row's cursor [high-low], and advance the cursor."""
    for i in range(len(sources)):
        u, v = sources[i], targets[i]
        if u != v or self_loops:
            if low <= v < high:
                entries[cursor[v - low]] = u
                cursor[v - low] += 1
            if symmetric and u != v and low <= u < high:
                entries[cursor[u - low]] = v
                cursor[u - low] += 1


@_compile
def sort_range(entries, a, b):
    """Sort entries a..b-1."""
    if b - a <= 24:
        for i in range(a + 1, b):
            x = entries[i]
            j = i - 1
            while j >= a and entries[j] > x:
                entries[j + 1] = entries[j]
                j -= 1
            entries[j + 1] = x
    else:
        entries[a:b].sort()


@_compile
def renumber_rows(indptr, entries, order, places, starts, first, last, out):
    """Write row order[r] as sorted row r, renumbered by places, at starts[r], for r in first..last-1."""
    for r in range(first, last):
        at = starts[r]
        for e in range(indptr[order[r]], indptr[order[r] + 1]):
            out[at] = places[entries[e]]
            at += 1
        sort_range(out, starts[r], at)


@_compile
def sort_rows(starts, first, last, entries, counts):
    """Sort rows first..last-1 and remove duplicates; write the remaining length of each row to counts."""
    for r in range(first, last):
        a, b = starts[r], starts[r + 1]
        sort_range(entries, a, b)
        end = a
        for i in range(a, b):
            if i == a or entries[i] != entries[end - 1]:
                entries[end] = entries[i]
                end += 1
        counts[r] = end - a


@_compile
def sort_rows_with_values(starts, first, last, entries, values):
    """Sort rows first..last-1 stably, and permute the parallel array `values` in the same way."""
    for r in range(first, last):
        a, b = starts[r], starts[r + 1]
        if b - a <= 24:
            for i in range(a + 1, b):
                x, n = entries[i], values[i]
                j = i - 1
                while j >= a and entries[j] > x:
                    entries[j + 1], values[j + 1] = entries[j], values[j]
                    j -= 1
                entries[j + 1], values[j + 1] = x, n
        else:
            order = np.argsort(entries[a:b], kind="mergesort")
            entries[a:b] = entries[a:b][order]
            values[a:b] = values[a:b][order]


@_compile
def compact_rows(starts, counts, entries):
    """Compact the first counts[r] entries of every row; return the number of remaining entries."""
    at = 0
    for r in range(len(counts)):
        for i in range(starts[r], starts[r] + counts[r]):
            entries[at] = entries[i]
            at += 1
    return at


@_compile
def count_self_loops(indptr, indices, first, last, counts):
    """Write the number of self loops of each of the rows first..last-1 to counts [V]."""
    for r in range(first, last):
        counts[r] = 0
        for i in range(indptr[r], indptr[r + 1]):
            counts[r] += indices[i] == r


@_compile
def mark_self_loops(indptr, indices, first, last, marks):
    """Mark the self loops of the rows first..last-1 in marks [E]."""
    for r in range(first, last):
        for i in range(indptr[r], indptr[r + 1]):
            marks[i] = indices[i] == r


@_compile
def hash_edge(key, u, v):
    """Return the random 64-bit hash of an undirected edge, equal in both directions."""
    low, high = np.uint64(min(u, v)), np.uint64(max(u, v))
    return mix64(mix64(np.uint64(key) + (low + np.uint64(1)) * GOLDEN) + (high + np.uint64(1)) * GOLDEN)


@_compile
def collect_edge_ranks(starts, entries, first_vertex, key, bound, ranks):
    """Write the hashes below bound of the edges (u, v), u < v, of these rows to ranks; return their count."""
    found = 0
    base = starts[0]
    for r in range(len(starts) - 1):
        v = first_vertex + r
        for i in range(starts[r] - base, starts[r + 1] - base):
            if entries[i] < v:
                rank = hash_edge(key, entries[i], v)
                if rank < bound:
                    if found < len(ranks):
                        ranks[found] = rank
                    found += 1
    return found


@_compile
def drop_low_ranks(starts, entries, first_vertex, key, bound, out, counts):
    """Copy the edges whose hash is at least bound to out, row by row; return their number."""
    at = 0
    base = starts[0]
    for r in range(len(starts) - 1):
        v = first_vertex + r
        before = at
        for i in range(starts[r] - base, starts[r + 1] - base):
            if hash_edge(key, entries[i], v) >= bound:
                out[at] = entries[i]
                at += 1
        counts[r] = at - before
    return at


@_compile
def is_symmetric_csr(indptr, indices, low, high):
    """Return whether edges u -> v and v -> u match, for all u, v with low <= min(u, v) < high.

    Each row c has a cursor into its edges from higher vertices, which must match the rows i > c in order. The
    result is False if rows low..high-1 are not sorted.
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
def count_columns(indices, low, high, counts):
    """Count the edges of each column c, low <= c < high, into counts[c]."""
    counts[low:high] = 0
    for e in range(len(indices)):
        c = indices[e]
        if low <= c < high:
            counts[c] += 1


@_compile
def transpose_rows(indptr, indices, t_indptr, low, high, t_indices):
    """Write rows low..high-1 of the transpose."""
    at = t_indptr[low:high].copy()
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            c = indices[e]
            if low <= c < high:
                t_indices[at[c - low]] = i
                at[c - low] += 1


@_compile
def transpose_edge_ids(indptr, indices, t_indptr, low, high, edges):
    """Write the original edge index of each edge in rows low..high-1 of the transpose."""
    at = t_indptr[low:high].copy()
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            c = indices[e]
            if low <= c < high:
                edges[at[c - low]] = e
                at[c - low] += 1
