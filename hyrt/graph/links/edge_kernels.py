"""Compiled loops that look up edges in a topology. All release the GIL."""

# mypy: disable-error-code="no-untyped-def", disallow-untyped-decorators=False
from __future__ import annotations

import numpy as np

from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import random_below, random_bits, vertex_stream

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def _lower_bound(indices, start, stop, source):
    """Return the first position in start..stop whose source is at least `source`; rows are sorted."""
    while start < stop:
        middle = (start + stop) >> 1
        if indices[middle] < source:
            start = middle + 1
        else:
            stop = middle
    return start


@_compile
def find_relation_edges(indptr, indices, types, pairs, relation, firsts, counts):
    """Find each pair's edge position and count (0 or 1) in one relation; rows are sorted by relation
    first.
    """
    for i in range(len(pairs)):
        start, stop = indptr[pairs[i, 1]], indptr[pairs[i, 1] + 1]
        end = stop
        while start < stop:
            middle = (start + stop) >> 1
            kind = types[middle]
            if kind < relation or (kind == relation and indices[middle] < pairs[i, 0]):
                start = middle + 1
            else:
                stop = middle
        firsts[i] = start
        counts[i] = start < end and types[start] == relation and indices[start] == pairs[i, 0]


@_compile
def find_edges(indptr, indices, pairs, firsts, counts):
    """Find the first edge position and the number of edges of each pair (source, destination)."""
    for i in range(len(pairs)):
        row = pairs[i, 1]
        stop = indptr[row + 1]
        first = _lower_bound(indices, indptr[row], stop, pairs[i, 0])
        firsts[i] = first
        at = first
        while at < stop and indices[at] == pairs[i, 0]:
            at += 1
        counts[i] = at - first


@_compile
def _int_below(bits, bound):
    """Map 64 uniform bits to 0..bound-1, as `hyrt.runtime.rng.random_ints_below` does."""
    if bound < 1 << 32:
        return np.int64(random_below(bits, np.uint64(bound)))
    return np.int64(np.float64(bits >> np.uint64(11)) * 2.0**-53 * bound)


@_compile
def _insert_once(values, num, value):
    """Insert a value into `num` increasing values unless it is present; return the new number of values."""
    at = _lower_bound(values, 0, num, value)
    if at < num and values[at] == value:
        return num
    for i in range(num, at, -1):
        values[i] = values[i - 1]
    values[at] = value
    return num + 1


@_compile
def _nth_free(excluded, num, n):
    """Return the n-th integer from 0 that is not one of `num` increasing excluded values."""
    start, stop = 0, num
    while start < stop:
        middle = (start + stop) >> 1
        if excluded[middle] - middle <= n:
            start = middle + 1
        else:
            stop = middle
    return n + start


@_compile
def sample_endpoints(indptr, indices, links, end, low, high, key, first, excluded, drawn_by, out):
    """Sample distinct replacements in low..high-1 for endpoint `end` (0 or 1) of each link [m, 2], without
    known edges.

    Floyd's algorithm (Bentley and Floyd, CACM 1987) over the remaining vertices: each set is equally likely,
    and one random number is used per vertex. The random streams start at counter `first` of `key`.

    Row v of the CSR (indptr, indices) has the vertices with a known edge to the other endpoint v, sorted,
    possibly with duplicates. `out` [m, num] is padded with -1. Scratch arrays: `excluded` has at least the
    length of the longest row plus 2, and `drawn_by` [high - low] is -1 initially.
    """
    num = out.shape[1]
    for i in range(len(links)):
        fixed, count, last = links[i, 1 - end], 0, np.int64(-1)
        for e in range(indptr[fixed], indptr[fixed + 1]):
            other = np.int64(indices[e])
            if low <= other < high and other != last:
                excluded[count] = other - low
                count += 1
                last = other
        for other in (links[i, 0], links[i, 1]):
            if low <= other < high:
                count = _insert_once(excluded, count, np.int64(other) - low)
        free = high - low - count
        stream = vertex_stream(key, np.uint64(i))
        for place in range(min(num, free)):
            bound = free - min(num, free) + place
            bits = random_bits(stream, np.uint64(first + place))
            n = _int_below(bits, bound + 1)
            if drawn_by[n] == i:
                n = bound
            drawn_by[n] = i
            out[i, place] = low + _nth_free(excluded, count, n)
