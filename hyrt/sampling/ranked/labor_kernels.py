"""The compiled loop that draws neighbours as LABOR-0 does. It releases the interpreter lock."""

# mypy: disable-error-code="no-untyped-def,call-arg,call-overload", disallow-untyped-decorators=False
from __future__ import annotations

import numpy as np

from hyrt.machine.generator import vertex_stream
from hyrt.machine.intrinsics import prefetch
from hyrt.machine.kernels.kept_kernels import nb
from hyrt.sampling.ranked.least_kernels import keep_least, unit_number

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)

# Numbers are worked out for so many edges at a time, which a processor does for several at once.
_TOGETHER = 256
_CLASSES = 64
_AHEAD = 8


@_compile
def draw_least_numbers(indptr, indices, vertices, offsets, key, start, stop, ranks, positions, neighbors):
    """Sample the neighbours of vertices[start:stop] with the smallest random numbers, in row order."""
    most = 0
    for i in range(start, stop):
        most = max(most, offsets[i + 1] - offsets[i])
    room = most + np.int64(10 * np.sqrt(most)) + 64
    numbers = np.empty(_TOGETHER, np.float64)
    low, places = np.empty(room + _TOGETHER, np.float64), np.empty(room + _TOGETHER, np.int64)
    sizes = np.empty(_CLASSES, np.int64)
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch(indices, np.int64(indptr[vertices[i + _AHEAD]]))
        first = indptr[vertices[i]]
        degree = indptr[vertices[i] + 1] - first
        begin = offsets[i]
        count = offsets[i + 1] - begin
        if count == degree:
            for k in range(count):
                positions[begin + k] = first + k
                neighbors[begin + k] = indices[first + k]
            continue
        limit = min(1.0, (count + 3.0 * np.sqrt(count) + 3.0) / degree)
        found = 0
        for at in range(first, first + degree, _TOGETHER):
            many = min(_TOGETHER, first + degree - at)
            for k in range(many):
                numbers[k] = unit_number(vertex_stream(key, np.uint64(indices[at + k])))
            for k in range(many):
                # Written in any case, and overwritten by the next where it is not below.
                low[found] = numbers[k]
                places[found] = at + k
                found += numbers[k] <= limit
            if found > room:
                break
        if found < count or found > room:
            size = 0
            for position in range(first, first + degree):
                rank = unit_number(vertex_stream(key, np.uint64(indices[position])))
                size = keep_least(ranks, positions, begin, size, count, rank, position)
            positions[begin : begin + count].sort()
            for k in range(begin, begin + count):
                neighbors[k] = indices[positions[k]]
            continue
        # The class of the count-th, and which of that class are kept.
        sizes[:] = 0
        scale = _CLASSES / limit
        for k in range(found):
            sizes[min(np.int64(low[k] * scale), _CLASSES - 1)] += 1
        last, before = 0, 0
        while before + sizes[last] < count:
            before += sizes[last]
            last += 1
        bound, equal = _of_class(low, found, scale, last, count - before)
        at = begin
        for k in range(found):
            if low[k] < bound or (low[k] == bound and equal > 0):
                equal -= low[k] == bound
                positions[at] = places[k]
                neighbors[at] = indices[places[k]]
                at += 1


@_compile
def _of_class(low, found, scale, wanted, which):
    """Return the which-th smallest number of a class, from 1, and how many numbers equal to it are
    included.
    """
    for i in range(found):
        if min(np.int64(low[i] * scale), _CLASSES - 1) != wanted:
            continue
        less, equal = 0, 0
        for k in range(found):
            if min(np.int64(low[k] * scale), _CLASSES - 1) == wanted:
                less += low[k] < low[i]
                equal += low[k] == low[i]
        if less < which <= less + equal:
            return low[i], which - less
    return np.inf, 0
