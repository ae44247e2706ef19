"""Compiled loops over subgraphs and random walks.

All kernels release the GIL and write disjoint ranges.
"""

# mypy: disable-error-code="no-untyped-def", disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np

from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import random_below, random_bits, vertex_stream
from hyrt.sampling.kernels import sample_neighbors

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Cost of a lookup in a sorted row, as a number of steps in a linear scan of the row.
_SEARCH = 12


@_compile
def count_columns(indptr, indices, vertices, local, counts, start, stop):
    """Count the edges into vertices[start:stop] from vertices that have a row in `local`."""
    for i in range(start, stop):
        v = vertices[i]
        count = 0
        for e in range(indptr[v], indptr[v + 1]):
            if local[indices[e]] >= 0:
                count += 1
        counts[local[v]] = count


@_compile
def write_columns(indptr, indices, vertices, local, offsets, columns, start, stop):
    """Write the columns of the counted edges in row order."""
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
    """Return whether the columns of every row are in ascending order, possibly with duplicates."""
    for v in range(len(indptr) - 1):
        for e in range(indptr[v] + 1, indptr[v + 1]):
            if indices[e] < indices[e - 1]:
                return False
    return True


@nb.njit(inline="always", cache=True, nogil=True)
def find_slot(table, shift, members, vertex):
    """Find the slot of a vertex, or the free slot for it, in an open-addressing hash table."""
    slot = np.int64((np.uint64(vertex) * _GOLDEN) >> shift)
    while table[slot] >= 0 and members[table[slot]] != vertex:
        slot = (slot + 1) & (len(table) - 1)
    return slot


@_compile
def make_table(capacity):
    """Return an empty hash table for `capacity` members, and the shift of its hash function in bits."""
    bits = 3
    while (1 << bits) < 2 * capacity:
        bits += 1
    return np.full(1 << bits, -1, np.int32), np.uint64(64 - bits)


@_compile
def grow_subgraphs(indptr, indices, roots, keys, fanout, max_members, start, stop, members, counts):
    """Collect the vertices around each of roots[start:stop] in members[i, :counts[i]], the root first."""
    table, shift = make_table(max_members)
    offsets = np.empty(max_members + 1, np.int32)
    for i in range(start, stop):
        found = members[i]
        found[0] = roots[i]
        table[find_slot(table, shift, found, roots[i])] = 0
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
            sample_neighbors(
                indptr, indices, frontier, offsets, keys[hop], 0, len(frontier), positions, drawn
            )
            first = num
            for e in range(edges):
                slot = find_slot(table, shift, found, drawn[e])
                if table[slot] < 0:
                    found[num] = drawn[e]
                    table[slot] = num
                    num += 1
        counts[i] = num
        table[:] = -1


@_compile
def write_induced_edges(
    indptr,
    indices,
    ascending,
    members,
    counts,
    max_members,
    rows,
    num_roots,
    start,
    stop,
    write,
    offsets,
    columns,
):
    """Count or write the edges between the members of each of the subgraphs start..stop-1."""
    table, shift = make_table(max_members)
    for i in range(start, stop):
        found, num = members[i], counts[i]
        for k in range(num):
            table[find_slot(table, shift, found, found[k])] = k
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
                    j = table[find_slot(table, shift, found, indices[e])]
                    if j >= 0:
                        if write:
                            columns[at] = i if j == 0 else rows[i] + j - 1
                        at += 1
            if not write:
                offsets[row + 1] = at
        table[:] = -1


_55 = np.uint64(0x5555555555555555)
_33 = np.uint64(0x3333333333333333)
_0F = np.uint64(0x0F0F0F0F0F0F0F0F)
_01 = np.uint64(0x0101010101010101)


@nb.njit("int64(uint64)", inline="always", cache=True, nogil=True)
def count_ones(bits):
    """Count the set bits of a 64-bit number."""
    bits = bits - ((bits >> np.uint64(1)) & _55)
    bits = (bits & _33) + ((bits >> np.uint64(2)) & _33)
    bits = (bits + (bits >> np.uint64(4))) & _0F
    return np.int64((bits * _01) >> np.uint64(56))


@_compile
def random_walks(indptr, indices, starts, length, key, start, stop, visited):
    """Run random walks start..stop-1 of a subgraph against the edge direction from random `starts`."""
    for i in range(start, stop):
        stream = vertex_stream(key, np.uint64(i))
        v = starts[random_below(random_bits(stream, np.uint64(0)), np.uint64(len(starts)))]
        at = i * (length + 1)
        visited[at] = v
        for k in range(1, length + 1):
            first = indptr[v]
            degree = indptr[v + 1] - first
            if degree > 0:
                v = indices[
                    first + np.int64(random_below(random_bits(stream, np.uint64(k)), np.uint64(degree)))
                ]
            visited[at + k] = v


@_compile
def mark_members(visited, subgraph, members):
    """Set bit `subgraph` of members[v] for every visited vertex v."""
    bit = np.uint64(1) << np.uint64(subgraph)
    for i in range(len(visited)):
        members[visited[i]] |= bit


@_compile
def count_members(indptr, indices, members, start, stop, vertex_counts, edge_counts):
    """Count the subgraphs in `members` that have each vertex of start..stop-1, and each of its edges."""
    for v in range(start, stop):
        mine = members[v]
        if mine == 0:
            continue
        vertex_counts[v] += count_ones(mine)
        for e in range(indptr[v], indptr[v + 1]):
            both = mine & members[indices[e]]
            if both != 0:
                edge_counts[e] += count_ones(both)


@_compile
def collect_distinct(visited, is_target, local, vertices):
    """Collect the visited vertices, targets first; return the numbers of distinct targets and vertices."""
    num = 0
    num_targets = 0
    for collects_targets in (True, False):
        for i in range(len(visited)):
            v = visited[i]
            if is_target[v] == collects_targets and local[v] < 0:
                local[v] = num
                vertices[num] = v
                num += 1
        if collects_targets:
            num_targets = num
    for i in range(num):
        local[vertices[i]] = -1
    return num_targets, num


@_compile
def assign_rows(vertices, num_targets, target_row, other_row, local, sources):
    """Assign rows of the union to a subgraph: to targets from `target_row` on, to others from `other_row`."""
    for i in range(len(vertices)):
        row = target_row + i if i < num_targets else other_row + i - num_targets
        local[vertices[i]] = row
        sources[row] = vertices[i]


@_compile
def reset_rows(vertices, local):
    """Reset `local` to -1."""
    for i in range(len(vertices)):
        local[vertices[i]] = -1


@_compile
def write_edges(
    indptr, indices, vertices, local, offsets, vertex_counts, edge_counts, start, stop, columns, weights
):
    """Write columns and weights of the edges that `count_columns` has counted, in row order."""
    for i in range(start, stop):
        v = vertices[i]
        at = offsets[local[v]]
        seen = vertex_counts[v] + 1
        for e in range(indptr[v], indptr[v + 1]):
            row = local[indices[e]]
            if row >= 0:
                columns[at] = row
                weights[at] = np.float32(seen / (edge_counts[e] + 1))
                at += 1
