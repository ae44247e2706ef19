"""Compiled loops that keep the neighbours of least rank. All release the interpreter lock."""

# mypy: disable-error-code="no-untyped-def", disallow-untyped-decorators=False
from __future__ import annotations

import numpy as np

from hyrt.machine.generator import vertex_stream
from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)

_11 = np.uint64(11)
_UNIT = 2.0**-53


@nb.njit("float64(uint64)", inline="always", cache=True, nogil=True)
def unit_number(bits):
    """Map 64 uniform bits to (0, 1]."""
    return (np.float64(bits >> _11) + 1.0) * _UNIT


@nb.njit(inline="always", cache=True, nogil=True)
def keep_least(ranks, positions, begin, size, room, rank, position):
    """Push an item into a max-heap at `begin` that holds the `room` smallest ranks so far.

    Returns
    -------
    How many are kept.
    """
    if size < room:
        at = size
        while at > 0:
            above = (at - 1) >> 1
            if ranks[begin + above] >= rank:
                break
            ranks[begin + at] = ranks[begin + above]
            positions[begin + at] = positions[begin + above]
            at = above
        ranks[begin + at] = rank
        positions[begin + at] = position
        return size + 1
    if rank >= ranks[begin]:
        return size
    at = 0
    while True:
        below = 2 * at + 1
        if below >= room:
            break
        if below + 1 < room and ranks[begin + below + 1] > ranks[begin + below]:
            below += 1
        if ranks[begin + below] <= rank:
            break
        ranks[begin + at] = ranks[begin + below]
        positions[begin + at] = positions[begin + below]
        at = below
    ranks[begin + at] = rank
    positions[begin + at] = position
    return size


@_compile
def draw_least_ranks(
    indptr, indices, vertices, offsets, key, chances, start, stop, ranks, positions, neighbors, weights
):
    """Sample the neighbours of vertices[start:stop] with the smallest rank, number over probability."""
    for i in range(start, stop):
        first = indptr[vertices[i]]
        degree = indptr[vertices[i] + 1] - first
        begin = offsets[i]
        count = offsets[i + 1] - begin
        if count == degree:
            for k in range(count):
                neighbors[begin + k] = indices[first + k]
                weights[begin + k] = 1.0
            continue
        base = begin + i
        size = 0
        for position in range(first, first + degree):
            u = indices[position]
            rank = unit_number(vertex_stream(key, np.uint64(u))) / chances[u]
            size = keep_least(ranks, positions, base, size, count + 1, rank, position)
        limit = ranks[base]
        positions[base + 1 : base + 1 + count].sort()
        total = 0.0
        for k in range(count):
            u = indices[positions[base + 1 + k]]
            weight = 1.0 / min(1.0, chances[u] * limit)
            neighbors[begin + k] = u
            weights[begin + k] = weight
            total += weight
        for k in range(count):
            weights[begin + k] *= degree / total
