"""Compiled loops that look edges up in a topology. All release the interpreter lock."""

# mypy: disable-error-code="no-untyped-def", disallow-untyped-decorators=False
from __future__ import annotations

import numpy as np

from hyrt.machine.generator import below, random_bits, vertex_stream
from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def _first_at_least(indices, start, stop, source):
    """The first position of start..stop whose source is not below `source`; rows are sorted."""
    while start < stop:
        middle = (start + stop) >> 1
        if indices[middle] < source:
            start = middle + 1
        else:
            stop = middle
    return start


@_compile
def find_typed_edges(indptr, indices, types, pairs, relation, firsts, counts):
    """Of each pair, the position of its edge of a relation, and 1 or 0; rows are sorted by relation first."""
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
    """Of each pair (source, destination), the position of its first edge and how many there are."""
    for i in range(len(pairs)):
        row = pairs[i, 1]
        stop = indptr[row + 1]
        first = _first_at_least(indices, indptr[row], stop, pairs[i, 0])
        firsts[i] = first
        at = first
        while at < stop and indices[at] == pairs[i, 0]:
            at += 1
        counts[i] = at - first


@_compile
def _int_below(bits, bound):
    """Map 64 uniform bits to 0..bound-1, as `hyrt.machine.generator.ints_below` does."""
    if bound < 1 << 32:
        return np.int64(below(bits, np.uint64(bound)))
    return np.int64(np.float64(bits >> np.uint64(11)) * 2.0**-53 * bound)


@_compile
def _insert_once(values, num, value):
    """Insert into `num` rising values unless it is one of them; returns how many there are then."""
    at = _first_at_least(values, 0, num, value)
    if at < num and values[at] == value:
        return num
    for i in range(num, at, -1):
        values[i] = values[i - 1]
    values[at] = value
    return num + 1


@_compile
def _nth_free(excluded, num, n):
    """The n-th number from 0 on that is not among `num` rising excluded ones."""
    start, stop = 0, num
    while start < stop:
        middle = (start + stop) >> 1
        if excluded[middle] - middle <= n:
            start = middle + 1
        else:
            stop = middle
    return n + start


@_compile
def draw_ends(indptr, indices, links, end, low, high, key, first, excluded, drawn_by, out):
    """For one end of each link, draw different vertices that make no known edge with the other end.

    Floyd's algorithm (Bentley and Floyd, CACM 1987) over the vertices that are left: each set of them is
    equally likely, and one random number is used for each vertex.

    Parameters
    ----------
    indptr, indices
        The vertices that make a known edge in the end's place, by the other end; rising, may repeat.
    links, end
        [m, 2], and which of its columns is replaced.
    low, high
        The vertices that may be drawn: low..high-1.
    key, first
        The key of the links' streams, and their first counter.
    excluded, drawn_by
        Scratch memory: at least the longest row and 2, and [high - low] of -1.
    out
        [m, num], filled up with -1.
    """
    num = out.shape[1]
    for i in range(len(links)):
        kept, count, last = links[i, 1 - end], 0, np.int64(-1)
        for e in range(indptr[kept], indptr[kept + 1]):
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
