"""Compiled loops of layer-wise sampling. All release the interpreter lock."""

# mypy: disable-error-code="no-untyped-def", disallow-untyped-decorators=False
from __future__ import annotations

import numpy as np

from hyrt.machine.generator import random_bits, vertex_stream
from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)

_11 = np.uint64(11)
_UNIT = 2.0**-53
_0 = np.uint64(0)


@nb.njit("uint8(uint64, uint64, float64)", inline="always", cache=True, nogil=True)
def is_drawn(key, vertex, chance):
    """Return whether a vertex is sampled under a key, which has probability `chance`."""
    number = (np.float64(random_bits(vertex_stream(key, vertex), _0) >> _11) + 1.0) * _UNIT
    return number <= chance


@_compile
def add_importance(indptr, indices, in_degrees, vertices, sums, met):
    """Add 1 / ((d_v + 1) (d_u + 1)) to sums[u] for every edge from u into one of the vertices v.

    `sums` has an entry a vertex of the graph; `met` receives the sources whose sum was 0, as they are met.

    Returns
    -------
    How many were written to `met`.
    """
    num = 0
    for i in range(len(vertices)):
        v = vertices[i]
        of_row = 1.0 / (in_degrees[v] + 1.0)
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if sums[u] == 0.0:
                met[num] = u
                num += 1
            sums[u] += of_row / (in_degrees[u] + 1.0)
    return num


@_compile
def count_drawn(indptr, indices, vertices, key, chances, start, stop, counts):
    """Count the edges into each of vertices[start:stop] that come from a sampled vertex."""
    for i in range(start, stop):
        count = 0
        for e in range(indptr[vertices[i]], indptr[vertices[i] + 1]):
            u = indices[e]
            if is_drawn(key, np.uint64(u), chances[u]):
                count += 1
        counts[i] = count


@_compile
def write_drawn(indptr, indices, vertices, offsets, key, chances, scaled, start, stop, neighbors, weights):
    """Write the edges that `count_drawn` counted, in row order, and their inverse probabilities.

    If `scaled` is true, the weights of a vertex are scaled to sum to its degree.
    """
    for i in range(start, stop):
        first, last = indptr[vertices[i]], indptr[vertices[i] + 1]
        at = offsets[i]
        total = 0.0
        for e in range(first, last):
            u = indices[e]
            if is_drawn(key, np.uint64(u), chances[u]):
                neighbors[at] = u
                weights[at] = 1.0 / chances[u]
                total += 1.0 / chances[u]
                at += 1
        if scaled and total > 0.0:
            for k in range(offsets[i], at):
                weights[k] *= (last - first) / total
