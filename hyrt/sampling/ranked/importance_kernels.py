"""Compiled loops that find LABOR's importance of sources. All release the interpreter lock."""

# mypy: disable-error-code="no-untyped-def", disallow-untyped-decorators=False
from __future__ import annotations

import numpy as np

from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def solve_factors(indptr, indices, vertices, fanout, chances, start, stop, factors, counts):
    """Solve for the factor c of vertices[start:stop] and their expected number of neighbours."""
    for i in range(start, stop):
        first, last = indptr[vertices[i]], indptr[vertices[i] + 1]
        degree = last - first
        if fanout < 0 or degree <= fanout:
            least = 1.0
            for e in range(first, last):
                least = min(least, chances[indices[e]])
            factors[i] = 1.0 / least
            counts[i] = degree
            continue
        target = np.float64(degree) * np.float64(degree) / fanout
        factor, uncertain = 0.0, -1
        while True:
            inverse, num = 0.0, 0
            for e in range(first, last):
                chance = chances[indices[e]]
                if factor * chance < 1.0:
                    inverse += 1.0 / chance
                    num += 1
            if num == 0 or num == uncertain:
                break
            uncertain = num
            factor = inverse / (target - degree + num)
        expected = 0.0
        for e in range(first, last):
            expected += min(1.0, factor * chances[indices[e]])
        factors[i] = factor
        counts[i] = min(degree, np.int64(np.rint(expected)))


@_compile
def raise_chances(indptr, indices, vertices, factors, largest, chances):
    """Multiply the chance of every neighbour by the largest factor of those whose neighbour it is.

    One round of the paper's fixed-point iteration, with chances of at most 1. `largest` is scratch of one
    entry a vertex of the graph, all 0 before and after.
    """
    for i in range(len(vertices)):
        for e in range(indptr[vertices[i]], indptr[vertices[i] + 1]):
            u = indices[e]
            if factors[i] > largest[u]:
                largest[u] = factors[i]
    for i in range(len(vertices)):
        for e in range(indptr[vertices[i]], indptr[vertices[i] + 1]):
            u = indices[e]
            if largest[u] > 0.0:
                chances[u] = min(1.0, chances[u] * largest[u])
                largest[u] = 0.0


@_compile
def forget_chances(indptr, indices, vertices, chances):
    """Set the chances of all neighbours back to 1."""
    for i in range(len(vertices)):
        for e in range(indptr[vertices[i]], indptr[vertices[i] + 1]):
            chances[indices[e]] = 1.0
