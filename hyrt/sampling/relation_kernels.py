"""Compiled loops over runs in rows whose edges are sorted by relation.

A run consists of the edges of one relation into one vertex; these edges are contiguous. All kernels release
the interpreter lock and write disjoint ranges.
"""

# mypy: disable-error-code="no-untyped-def,call-arg,unreachable"

from __future__ import annotations

import numpy as np

from hyrt.runtime.intrinsics import prefetch
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import random_below, random_bits, vertex_stream
from hyrt.sampling.kernels import FLOYD_LIMIT

# Prefetch distance in table entries.
_AHEAD = 16
# Number of edges that are scanned linearly before a binary search for the end of the run.
_WALKED = 16

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def find_run_end(types, first, last):
    """Find the end of the run that begins at `first`; the end is at most `last`."""
    relation = types[first]
    near = min(first + _WALKED, last)
    at = first + 1
    while at < near:
        if types[at] != relation:
            return at
        at += 1
    low, high = at, last
    while low < high:
        middle = (low + high) // 2
        if types[middle] == relation:
            low = middle + 1
        else:
            high = middle
    return low


@_compile
def count_by_relation(indptr, types, vertices, fanouts, start, stop, degrees, counts):
    """Count neighbours and sampled neighbours of vertices[start:stop]; `fanouts` are [R], -1 takes all."""
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch(indptr, np.int64(vertices[i + _AHEAD]))
        first, last = indptr[vertices[i]], indptr[vertices[i] + 1]
        degrees[i] = last - first
        count = 0
        at = first
        while at < last:
            end = find_run_end(types, at, last)
            fanout = fanouts[types[at]]
            count += end - at if fanout < 0 or end - at < fanout else fanout
            at = end
        counts[i] = count


@_compile
def _draw_run(first, degree, count, stream, positions, begin):
    """Sample `count` of `degree` positions, from `first` on, without replacement; see `sample_neighbors`."""
    if count <= FLOYD_LIMIT:
        for k in range(count):
            last = degree - count + k
            pick = first + np.int64(random_below(random_bits(stream, np.uint64(k)), np.uint64(last + 1)))
            for taken in range(begin, begin + k):
                if positions[taken] == pick:
                    pick = first + last
                    break
            positions[begin + k] = pick
        return
    k = 0
    for candidate in range(degree):
        left = np.uint64(degree - candidate)
        if random_below(random_bits(stream, np.uint64(candidate)), left) < np.uint64(count - k):
            positions[begin + k] = first + candidate
            k += 1
            if k == count:
                return


@_compile
def sample_by_relation(
    indptr,
    indices,
    types,
    vertices,
    fanouts,
    offsets,
    key,
    start,
    stop,
    positions,
    neighbors,
    sampled_types,
    weights,
):
    """Sample neighbours of vertices[start:stop] uniformly without replacement, separately per relation."""
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch(indptr, np.int64(vertices[i + _AHEAD]))
        first, last = indptr[vertices[i]], indptr[vertices[i] + 1]
        begin = np.int64(offsets[i])
        stream = vertex_stream(key, np.uint64(vertices[i]))
        at = first
        while at < last:
            end = find_run_end(types, at, last)
            relation, degree = types[at], end - at
            fanout = fanouts[relation]
            if fanout < 0 or degree <= fanout:
                count = degree
                for k in range(count):
                    positions[begin + k] = at + k
            else:
                count = fanout
                _draw_run(at, degree, count, random_bits(stream, np.uint64(relation)), positions, begin)
            weight = np.float32(degree / count) if count else np.float32(1)
            for k in range(begin, begin + count):
                prefetch(indices, np.int64(positions[k]))
                sampled_types[k] = relation
                weights[k] = weight
            begin += count
            at = end
    for e in range(offsets[start], offsets[stop]):
        neighbors[e] = indices[positions[e]]


@_compile
def count_runs(indptr, types, runs, edges):
    """Count the runs and the edges of each relation [R] in a block."""
    for i in range(len(indptr) - 1):
        at, last = indptr[i], indptr[i + 1]
        while at < last:
            relation = types[at]
            end = at + 1
            while end < last and types[end] == relation:
                end += 1
            runs[relation] += 1
            edges[relation] += end - at
            at = end


@_compile
def split_runs(indptr, types, next_run, next_edge, run_indptr, run_rows, edge_numbers, row_indptr, row_runs):
    """Assign numbers to runs, by relation and then by destination, in a block of E edges and P runs.

    `next_run` and `next_edge` are [R], the first run and edge of each relation; overwritten. Output:
    `run_indptr` [P + 1], offsets of the runs in the new edge order; `run_rows` [P], their destinations;
    `edge_numbers` [E], position in the block of each edge in the new order; `row_indptr` [n + 1] and
    `row_runs` [P], the runs of each destination as CSR.
    """
    placed = 0
    row_indptr[0] = 0
    for i in range(len(indptr) - 1):
        at, last = indptr[i], indptr[i + 1]
        while at < last:
            relation = types[at]
            run, edge = next_run[relation], next_edge[relation]
            run_rows[run] = i
            run_indptr[run] = edge
            row_runs[placed] = run
            placed += 1
            while at < last and types[at] == relation:
                edge_numbers[edge] = at
                edge += 1
                at += 1
            next_run[relation] = run + 1
            next_edge[relation] = edge
        row_indptr[i + 1] = placed
    run_indptr[len(run_rows)] = len(edge_numbers)
