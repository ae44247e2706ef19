"""Compiled loops of bottom-k sampling: LABOR and weighted neighbour sampling.

All kernels release the GIL.
"""

# mypy: disable-error-code="no-untyped-def,call-arg,call-overload", disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np

from hyrt.runtime.intrinsics import prefetch
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import random_bits, vertex_stream

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)

_11 = np.uint64(11)
_UNIT = 2.0**-53


@nb.njit("float64(uint64)", inline="always", cache=True, nogil=True)
def uniform_number(bits):
    """Map 64 uniform bits to (0, 1]."""
    return (np.float64(bits >> _11) + 1.0) * _UNIT


@nb.njit(inline="always", cache=True, nogil=True)
def push_bottom_k(ranks, positions, begin, size, capacity, rank, position):
    """Push an item into the max-heap of the `capacity` smallest ranks at `begin`; return its new size."""
    if size < capacity:
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
        if below >= capacity:
            break
        if below + 1 < capacity and ranks[begin + below + 1] > ranks[begin + below]:
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
def sample_bottom_k(
    indptr, indices, vertices, offsets, key, probabilities, start, stop, ranks, positions, neighbors, weights
):
    """Sample the neighbours of vertices[start:stop] with the smallest ranks (random number / probability)."""
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
            rank = uniform_number(vertex_stream(key, np.uint64(u))) / probabilities[u]
            size = push_bottom_k(ranks, positions, base, size, count + 1, rank, position)
        limit = ranks[base]
        positions[base + 1 : base + 1 + count].sort()
        total = 0.0
        for k in range(count):
            u = indices[positions[base + 1 + k]]
            weight = 1.0 / min(1.0, probabilities[u] * limit)
            neighbors[begin + k] = u
            weights[begin + k] = weight
            total += weight
        for k in range(count):
            weights[begin + k] *= degree / total


# Random numbers are computed in batches of this size, which the compiler can vectorize.
_TOGETHER = 256
_CLASSES = 64
_AHEAD = 8


@_compile
def sample_smallest_numbers(
    indptr, indices, vertices, offsets, key, start, stop, ranks, positions, neighbors
):
    """Sample the neighbours of vertices[start:stop] with the smallest random numbers, in row order."""
    max_degree = 0
    for i in range(start, stop):
        max_degree = max(max_degree, offsets[i + 1] - offsets[i])
    capacity = max_degree + np.int64(10 * np.sqrt(max_degree)) + 64
    numbers = np.empty(_TOGETHER, np.float64)
    low, places = np.empty(capacity + _TOGETHER, np.float64), np.empty(capacity + _TOGETHER, np.int64)
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
                numbers[k] = uniform_number(vertex_stream(key, np.uint64(indices[at + k])))
            for k in range(many):
                # Avoid a branch: always store the number, and advance only if it is at most the limit.
                low[found] = numbers[k]
                places[found] = at + k
                found += numbers[k] <= limit
            if found > capacity:
                break
        if found < count or found > capacity:
            size = 0
            for position in range(first, first + degree):
                rank = uniform_number(vertex_stream(key, np.uint64(indices[position])))
                size = push_bottom_k(ranks, positions, begin, size, count, rank, position)
            positions[begin : begin + count].sort()
            for k in range(begin, begin + count):
                neighbors[k] = indices[positions[k]]
            continue
        # Find the histogram bin with the count-th smallest number, then the numbers of this bin to sample.
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
def _of_class(low, found, scale, bin_index, which):
    """Return the smallest number of rank `which` (from 1) in a bin, and how many equal numbers to include."""
    for i in range(found):
        if min(np.int64(low[i] * scale), _CLASSES - 1) != bin_index:
            continue
        less, equal = 0, 0
        for k in range(found):
            if min(np.int64(low[k] * scale), _CLASSES - 1) == bin_index:
                less += low[k] < low[i]
                equal += low[k] == low[i]
        if less < which <= less + equal:
            return low[i], which - less
    return np.inf, 0


@_compile
def solve_factors(indptr, indices, vertices, fanout, probabilities, start, stop, factors, counts):
    """Solve for the factor c of each of vertices[start:stop], and its expected number of neighbours."""
    for i in range(start, stop):
        first, last = indptr[vertices[i]], indptr[vertices[i] + 1]
        degree = last - first
        if fanout < 0 or degree <= fanout:
            min_probability = 1.0
            for e in range(first, last):
                min_probability = min(min_probability, probabilities[indices[e]])
            factors[i] = 1.0 / min_probability
            counts[i] = degree
            continue
        target = np.float64(degree) * np.float64(degree) / fanout
        factor, uncertain = 0.0, -1
        while True:
            inverse, num = 0.0, 0
            for e in range(first, last):
                chance = probabilities[indices[e]]
                if factor * chance < 1.0:
                    inverse += 1.0 / chance
                    num += 1
            if num == 0 or num == uncertain:
                break
            uncertain = num
            factor = inverse / (target - degree + num)
        expected = 0.0
        for e in range(first, last):
            expected += min(1.0, factor * probabilities[indices[e]])
        factors[i] = factor
        counts[i] = min(degree, np.int64(np.rint(expected)))


@_compile
def update_probabilities(indptr, indices, vertices, factors, max_factors, probabilities):
    """Multiply the inclusion probability of each neighbour by the largest factor of its destinations.

    This is one round of LABOR's fixed-point iteration. Probabilities are at most 1. `max_factors` is scratch
    memory with one entry per vertex of the graph, all 0 before and after the call.
    """
    for i in range(len(vertices)):
        for e in range(indptr[vertices[i]], indptr[vertices[i] + 1]):
            u = indices[e]
            if factors[i] > max_factors[u]:
                max_factors[u] = factors[i]
    for i in range(len(vertices)):
        for e in range(indptr[vertices[i]], indptr[vertices[i] + 1]):
            u = indices[e]
            if max_factors[u] > 0.0:
                probabilities[u] = min(1.0, probabilities[u] * max_factors[u])
                max_factors[u] = 0.0


@_compile
def reset_probabilities(indptr, indices, vertices, probabilities):
    """Reset the inclusion probabilities of all neighbours to 1."""
    for i in range(len(vertices)):
        for e in range(indptr[vertices[i]], indptr[vertices[i] + 1]):
            probabilities[indices[e]] = 1.0


@_compile
def sample_by_priority(
    indptr, indices, edge_weights, vertices, offsets, key, start, stop, ranks, positions, neighbors, weights,
    edges,
):  # fmt: skip
    """Sample neighbours of vertices[start:stop] without replacement; weights are inverse probabilities."""
    for i in range(start, stop):
        first = indptr[vertices[i]]
        degree = indptr[vertices[i] + 1] - first
        begin = offsets[i]
        count = offsets[i + 1] - begin
        if count == degree:
            for k in range(count):
                edges[begin + k] = first + k
                neighbors[begin + k] = indices[first + k]
                weights[begin + k] = 1.0
            continue
        stream = vertex_stream(key, np.uint64(vertices[i]))
        base = begin + i
        size = 0
        for k in range(degree):
            rank = uniform_number(random_bits(stream, np.uint64(k))) / edge_weights[first + k]
            size = push_bottom_k(ranks, positions, base, size, count + 1, rank, first + k)
        limit = ranks[base]
        positions[base + 1 : base + 1 + count].sort()
        for k in range(count):
            e = positions[base + 1 + k]
            edges[begin + k] = e
            neighbors[begin + k] = indices[e]
            weights[begin + k] = 1.0 / min(1.0, edge_weights[e] * limit)


@_compile
def sample_with_replacement(
    indptr, indices, edge_weights, vertices, offsets, key, start, stop, numbers, neighbors, weights, edges
):
    """Sample neighbours of vertices[start:stop] by edge weight; take each neighbour once if there are few."""
    for i in range(start, stop):
        first = indptr[vertices[i]]
        degree = indptr[vertices[i] + 1] - first
        begin = offsets[i]
        count = offsets[i + 1] - begin
        if count == degree:
            for k in range(count):
                edges[begin + k] = first + k
                neighbors[begin + k] = indices[first + k]
                weights[begin + k] = 1.0
            continue
        total = 0.0
        for e in range(first, first + degree):
            total += edge_weights[e]
        stream = vertex_stream(key, np.uint64(vertices[i]))
        for k in range(count):
            numbers[begin + k] = total * uniform_number(random_bits(stream, np.uint64(k)))
        numbers[begin : begin + count].sort()
        e, reached = first, np.float64(edge_weights[first])
        for k in range(count):
            while reached < numbers[begin + k] and e < first + degree - 1:
                e += 1
                reached += edge_weights[e]
            edges[begin + k] = e
            neighbors[begin + k] = indices[e]
            weights[begin + k] = total / (count * edge_weights[e])


@_compile
def scale_to_sums(sums, offsets, edge_weights, edges, weights):
    """Scale the factors of each vertex's edges such that factors times edge weights add up to `sums`."""
    for i in range(len(sums)):
        total = 0.0
        for k in range(offsets[i], offsets[i + 1]):
            total += weights[k] * edge_weights[edges[k]]
        for k in range(offsets[i], offsets[i + 1]):
            weights[k] *= sums[i] / total
