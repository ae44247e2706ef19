"""Compiled loops that place the edges of all relations into the rows of one CSR matrix.

An edge is encoded as relation * V + source until its row is sorted. All loops release the GIL and write only
their given range.
"""

# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

import numpy as np

from hyrt.graph.kernels import sort_range
from hyrt.runtime.numba_cache import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def find_out_of_range(ids, bound):
    """Return the position of the first number outside 0..bound-1, or -1."""
    for i in range(len(ids)):
        if ids[i] < 0 or ids[i] >= bound:
            return i
    return -1


@_compile
def count_targets(targets, shift, low, high, counts):
    """Add the number of edges into each vertex in low..high-1 to counts [V]; targets are offset by
    `shift`.
    """
    for i in range(len(targets)):
        v = np.int64(targets[i]) + shift
        if low <= v < high:
            counts[v] += 1


@_compile
def scatter_keys(sources, targets, code, shift, low, high, first, cursor, entries):
    """Write the edges into vertices low..high-1, as source + `code`, at cursor[v - first] of vertex v."""
    for i in range(len(targets)):
        v = np.int64(targets[i]) + shift
        if low <= v < high:
            at = cursor[v - first]
            entries[at] = np.int64(sources[i]) + code
            cursor[v - first] = at + 1


@_compile
def scatter_weighted(sources, targets, values, code, shift, low, high, first, cursor, entries, weights):
    """Write edges like `scatter_keys`, and their weights `values` to the same positions of `weights`."""
    for i in range(len(targets)):
        v = np.int64(targets[i]) + shift
        if low <= v < high:
            at = cursor[v - first]
            entries[at], weights[at] = np.int64(sources[i]) + code, values[i]
            cursor[v - first] = at + 1


@_compile
def merge_duplicates(starts, first, last, entries, weights, counts):
    """Merge duplicates in the sorted rows first..last-1, sum their weights, and write the new row lengths
    to counts.
    """
    for r in range(first, last):
        end = i = starts[r]
        while i < starts[r + 1]:
            total, j = np.float64(weights[i]), i + 1
            while j < starts[r + 1] and entries[j] == entries[i]:
                total += weights[j]
                j += 1
            entries[end], weights[end] = entries[i], total
            end += 1
            i = j
        counts[r] = end - starts[r]


@_compile
def decode(entries, num_vertices, start, stop, sources, relations):
    """Decode entries[i] into sources[i] and relations[i]."""
    for i in range(start, stop):
        key = np.int64(entries[i])
        relation = key // num_vertices
        relations[i] = relation
        sources[i] = key - relation * num_vertices


@_compile
def renumber_keys(indptr, indices, numbers, order, places, num_vertices, starts, first, last, keys):
    """Write row order[r] as sorted row r, with sources renumbered by places and encoded, for r in
    first..last-1.
    """
    for r in range(first, last):
        at = starts[r]
        for e in range(indptr[order[r]], indptr[order[r] + 1]):
            keys[at] = np.int64(numbers[e]) * num_vertices + places[indices[e]]
            at += 1
        sort_range(keys, starts[r], at)


@_compile
def count_relation_edges(indptr, numbers, edges, longest, reached):
    """Count each relation's edges [R], maximum in-degree [R] and destinations with edges [R]."""
    for row in range(len(indptr) - 1):
        run = 0
        for e in range(indptr[row], indptr[row + 1]):
            relation = numbers[e]
            run = run + 1 if e > indptr[row] and numbers[e - 1] == relation else 1
            edges[relation] += 1
            reached[relation] += run == 1
            longest[relation] = max(longest[relation], run)


NO_RELATION, WRONG_DESTINATION, WRONG_SOURCE, DISORDER = 1, 2, 3, 4
"""Error codes of `find_invalid_relation_edge`."""


@_compile
def find_invalid_relation_edge(indptr, indices, numbers, starts, from_types, to_types, low, high, ordered):
    """Return the first invalid edge into vertices low..high-1, its row and the error code, or (-1, -1, 0).

    If `ordered`, rows must also be strictly increasing by relation, then source.
    """
    for row in range(low, high):
        for e in range(indptr[row], indptr[row + 1]):
            relation, u = np.int64(numbers[e]), np.int64(indices[e])
            if relation < 0 or relation >= len(from_types):
                return e, row, NO_RELATION
            t = to_types[relation]
            if row < starts[t] or row >= starts[t + 1]:
                return e, row, WRONG_DESTINATION
            t = from_types[relation]
            if u < starts[t] or u >= starts[t + 1]:
                return e, row, WRONG_SOURCE
            if ordered and e > indptr[row]:
                if numbers[e - 1] > relation or (numbers[e - 1] == relation and indices[e - 1] >= u):
                    return e, row, DISORDER
    return -1, -1, 0
