"""Compiled loops that draw neighbours by the weights of edges. All release the interpreter lock."""

# mypy: disable-error-code="no-untyped-def", disallow-untyped-decorators=False
from __future__ import annotations

import numpy as np

from hyrt.machine.generator import random_bits, vertex_stream
from hyrt.machine.kernels.kept_kernels import nb
from hyrt.sampling.ranked.least_kernels import keep_least, unit_number

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def draw_by_priority(
    indptr, indices, edge_weights, vertices, offsets, key, start, stop, ranks, positions, neighbors, weights,
    edges,
):  # fmt: skip
    """Sample neighbours of vertices[start:stop] without replacement, with inverse probabilities."""
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
            rank = unit_number(random_bits(stream, np.uint64(k))) / edge_weights[first + k]
            size = keep_least(ranks, positions, base, size, count + 1, rank, first + k)
        limit = ranks[base]
        positions[base + 1 : base + 1 + count].sort()
        for k in range(count):
            e = positions[base + 1 + k]
            edges[begin + k] = e
            neighbors[begin + k] = indices[e]
            weights[begin + k] = 1.0 / min(1.0, edge_weights[e] * limit)


@_compile
def draw_with_replacement(
    indptr, indices, edge_weights, vertices, offsets, key, start, stop, numbers, neighbors, weights, edges
):
    """Sample neighbours of vertices[start:stop] by weight; few neighbours are all taken once."""
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
            numbers[begin + k] = total * unit_number(random_bits(stream, np.uint64(k)))
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
    """Multiply the factors of each vertex's edges by what makes factors times weights add up to its sum."""
    for i in range(len(sums)):
        total = 0.0
        for k in range(offsets[i], offsets[i + 1]):
            total += weights[k] * edge_weights[edges[k]]
        for k in range(offsets[i], offsets[i + 1]):
            weights[k] *= sums[i] / total
