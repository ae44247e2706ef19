"""Compiled loops over subgraphs. All release the interpreter lock and write disjoint ranges."""

# mypy: disable-error-code="no-untyped-def", disallow-untyped-decorators=False
from __future__ import annotations

import numpy as np

from hyrt.machine.kernels.kept_kernels import nb
from hyrt.sampling.kernels import draw_neighbors

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Looking a member up in a sorted row costs about as much as this many steps along the row.
_SEARCH = 12


@_compile
def count_columns(indptr, indices, vertices, local, counts, start, stop):
    """Count edges into vertices[start:stop] from vertices that `local` numbers."""
    for i in range(start, stop):
        v = vertices[i]
        count = 0
        for e in range(indptr[v], indptr[v + 1]):
            if local[indices[e]] >= 0:
                count += 1
        counts[local[v]] = count


@_compile
def write_columns(indptr, indices, vertices, local, offsets, columns, start, stop):
    """Write the columns of these edges in row order."""
    for i in range(start, stop):
        v = vertices[i]
        at = offsets[local[v]]
        for e in range(indptr[v], indptr[v + 1]):
            row = local[indices[e]]
            if row >= 0:
                columns[at] = row
                at += 1


@_compile
def rows_ascend(indptr, indices):
    """Return whether the columns of every row ascend; duplicates are allowed."""
    for v in range(len(indptr) - 1):
        for e in range(indptr[v] + 1, indptr[v + 1]):
            if indices[e] < indices[e - 1]:
                return False
    return True


@nb.njit(inline="always", cache=True, nogil=True)
def find(table, shift, members, vertex):
    """Find the slot of a vertex, or the free slot for it, in an open-addressed hash table."""
    slot = np.int64((np.uint64(vertex) * _GOLDEN) >> shift)
    while table[slot] >= 0 and members[table[slot]] != vertex:
        slot = (slot + 1) & (len(table) - 1)
    return slot


@_compile
def table_for(most):
    """Return an empty hash table for `most` members, and the shift of the hash."""
    bits = 3
    while (1 << bits) < 2 * most:
        bits += 1
    return np.full(1 << bits, -1, np.int32), np.uint64(64 - bits)


@_compile
def grow_subgraphs(indptr, indices, roots, keys, fanout, most, start, stop, members, counts):
    """Collect the vertices around each of roots[start:stop]: members[i, :counts[i]], the root first."""
    table, shift = table_for(most)
    offsets = np.empty(most + 1, np.int32)
    for i in range(start, stop):
        found = members[i]
        found[0] = roots[i]
        table[find(table, shift, found, roots[i])] = 0
        first, num = 0, 1
        for hop in range(len(keys)):
            frontier = found[first:num]
            offsets[0] = 0
            for k in range(len(frontier)):
                degree = indptr[frontier[k] + 1] - indptr[frontier[k]]
                offsets[k + 1] = offsets[k] + min(degree, fanout)
            edges = offsets[len(frontier)]
            positions = np.empty(edges, np.int64)
            drawn = np.empty(edges, found.dtype)
            draw_neighbors(indptr, indices, frontier, offsets, keys[hop], 0, len(frontier), positions, drawn)
            first = num
            for e in range(edges):
                slot = find(table, shift, found, drawn[e])
                if table[slot] < 0:
                    found[num] = drawn[e]
                    table[slot] = num
                    num += 1
        counts[i] = num
        table[:] = -1


@_compile
def inner_edges(
    indptr, indices, ascending, members, counts, most, rows, num_roots, start, stop, write, offsets, columns
):
    """Count or write the edges between the members of each subgraph of start..stop-1."""
    table, shift = table_for(most)
    for i in range(start, stop):
        found, num = members[i], counts[i]
        for k in range(num):
            table[find(table, shift, found, found[k])] = k
        for k in range(num):
            v = found[k]
            row = i if k == 0 else rows[i] + k - 1
            first, last = indptr[v], indptr[v + 1]
            at = offsets[row] if write else 0
            if ascending and last - first > _SEARCH * num:
                for j in range(num):
                    e = first + np.searchsorted(indices[first:last], found[j])
                    while e < last and indices[e] == found[j]:
                        if write:
                            columns[at] = i if j == 0 else rows[i] + j - 1
                        at += 1
                        e += 1
            else:
                for e in range(first, last):
                    j = table[find(table, shift, found, indices[e])]
                    if j >= 0:
                        if write:
                            columns[at] = i if j == 0 else rows[i] + j - 1
                        at += 1
            if not write:
                offsets[row + 1] = at
        table[:] = -1
