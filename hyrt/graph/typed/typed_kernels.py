"""Compiled loops that put the edges of all relations into the rows of one CSR matrix.

An edge is kept as one number, relation * V + source, until its row is sorted. All release the interpreter
lock, and touch only the rows or entries of the range they are given.
"""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

import numpy as np

from hyrt.graph.kernels import sort_range
from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def first_beyond(ids, bound):
    """First of some numbers that is not in 0..bound-1, or -1."""
    for i in range(len(ids)):
        if ids[i] < 0 or ids[i] >= bound:
            return i
    return -1


@_compile
def count_targets(targets, shift, low, high, counts):
    """Add to counts [V] the edges into the vertices low..high-1; targets are numbered from `shift` on."""
    for i in range(len(targets)):
        v = np.int64(targets[i]) + shift
        if low <= v < high:
            counts[v] += 1


@_compile
def scatter_keys(sources, targets, code, shift, low, high, first, cursor, entries):
    """Put the edges into the vertices low..high-1 at their row's place; vertex v has cursor[v - first].

    The number of an edge is its source plus `code`.
    """
    for i in range(len(targets)):
        v = np.int64(targets[i]) + shift
        if low <= v < high:
            at = cursor[v - first]
            entries[at] = np.int64(sources[i]) + code
            cursor[v - first] = at + 1


@_compile
def scatter_weighted(sources, targets, given, code, shift, low, high, first, cursor, entries, weights):
    """As `scatter_keys`, with the weight `given` of each edge beside its entry."""
    for i in range(len(targets)):
        v = np.int64(targets[i]) + shift
        if low <= v < high:
            at = cursor[v - first]
            entries[at], weights[at] = np.int64(sources[i]) + code, given[i]
            cursor[v - first] = at + 1


@_compile
def add_equal(starts, first, last, entries, weights, counts):
    """Of sorted rows first..last-1, keep one of equal entries, with the sum of their weights, in the front.

    counts gets what is left of each row.
    """
    for r in range(first, last):
        kept = i = starts[r]
        while i < starts[r + 1]:
            total, j = np.float64(weights[i]), i + 1
            while j < starts[r + 1] and entries[j] == entries[i]:
                total += weights[j]
                j += 1
            entries[kept], weights[kept] = entries[i], total
            kept += 1
            i = j
        counts[r] = kept - starts[r]


@_compile
def decode(entries, num_vertices, start, stop, sources, relations):
    """sources[i], relations[i] = what entries[i] stands for."""
    for i in range(start, stop):
        key = np.int64(entries[i])
        relation = key // num_vertices
        relations[i] = relation
        sources[i] = key - relation * num_vertices


@_compile
def renumber_keys(indptr, indices, numbers, order, places, num_vertices, starts, first, last, keys):
    """Row r of first..last-1 gets the edges of row order[r] with places[source], sorted, from starts[r] on.

    An edge is relation * V + source.
    """
    for r in range(first, last):
        at = starts[r]
        for e in range(indptr[order[r]], indptr[order[r] + 1]):
            keys[at] = np.int64(numbers[e]) * num_vertices + places[indices[e]]
            at += 1
        sort_range(keys, starts[r], at)


@_compile
def count_runs(indptr, numbers, edges, longest, reached):
    """Add to each relation's `edges` [R], and find its `longest` run [R] and how many rows it has [R]."""
    for row in range(len(indptr) - 1):
        run = 0
        for e in range(indptr[row], indptr[row + 1]):
            relation = numbers[e]
            run = run + 1 if e > indptr[row] and numbers[e - 1] == relation else 1
            edges[relation] += 1
            reached[relation] += run == 1
            longest[relation] = max(longest[relation], run)


NO_RELATION, WRONG_DESTINATION, WRONG_SOURCE, DISORDER = 1, 2, 3, 4
"""What may be wrong with an edge."""


@_compile
def first_wrong_edge(indptr, indices, numbers, starts, from_types, to_types, low, high, ordered):
    """The first wrong edge into the vertices low..high-1, its row and what is wrong; (-1, -1, 0) if none is.

    `ordered`: rows are also strictly increasing by relation, then source.
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
