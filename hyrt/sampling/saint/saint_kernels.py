"""Compiled loops of random-walk sampling. All release the interpreter lock and write disjoint ranges."""

# mypy: disable-error-code="no-untyped-def", disallow-untyped-decorators=False
from __future__ import annotations

import numpy as np

from hyrt.machine.generator import below, random_bits, vertex_stream
from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)

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
def walk(indptr, indices, starts, length, key, start, stop, visited):
    """Run random walks start..stop-1 of a subgraph, from random `starts` against the edge direction."""
    for i in range(start, stop):
        stream = vertex_stream(key, np.uint64(i))
        v = starts[below(random_bits(stream, np.uint64(0)), np.uint64(len(starts)))]
        at = i * (length + 1)
        visited[at] = v
        for k in range(1, length + 1):
            first = indptr[v]
            degree = indptr[v + 1] - first
            if degree > 0:
                v = indices[first + np.int64(below(random_bits(stream, np.uint64(k)), np.uint64(degree)))]
            visited[at + k] = v


@_compile
def mark_members(visited, subgraph, members):
    """Set bit `subgraph` of members[v] for every vertex visited."""
    bit = np.uint64(1) << np.uint64(subgraph)
    for i in range(len(visited)):
        members[visited[i]] |= bit


@_compile
def count_members(indptr, indices, members, start, stop, vertex_counts, edge_counts):
    """Add the subgraphs of `members` that hold each vertex of start..stop-1, and each of its edges."""
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
def distinct(visited, is_target, local, vertices):
    """Collect the visited vertices without duplicates, targets first.

    Returns
    -------
    The number of targets and of vertices written.
    """
    num = 0
    num_targets = 0
    for wanted in (True, False):
        for i in range(len(visited)):
            v = visited[i]
            if is_target[v] == wanted and local[v] < 0:
                local[v] = num
                vertices[num] = v
                num += 1
        if wanted:
            num_targets = num
    for i in range(num):
        local[vertices[i]] = -1
    return num_targets, num


@_compile
def number_rows(vertices, num_targets, target_row, other_row, local, sources):
    """Give a subgraph its rows of the union: its targets from `target_row` on, the rest from `other_row`."""
    for i in range(len(vertices)):
        row = target_row + i if i < num_targets else other_row + i - num_targets
        local[vertices[i]] = row
        sources[row] = vertices[i]


@_compile
def forget_rows(vertices, local):
    """Set `local` back to -1."""
    for i in range(len(vertices)):
        local[vertices[i]] = -1


@_compile
def write_edges(
    indptr, indices, vertices, local, offsets, vertex_counts, edge_counts, start, stop, columns, weights
):
    """Write columns and weights of the edges that `count_columns` counted, in row order."""
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
