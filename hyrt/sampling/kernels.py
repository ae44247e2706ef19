"""Compiled loops of neighbour and layer-wise sampling, and loops over runs in rows sorted by relation.  A run
has the edges of one relation into one vertex, which are contiguous. All kernels release the GIL and write
disjoint ranges.
"""

# mypy: disable-error-code="no-untyped-def,call-arg,unreachable", disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np

from hyrt.runtime.intrinsics import prefetch
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import random_below, random_bits, vertex_stream

# Above this fan-out, searching the sampled positions linearly is slower than one pass over the neighbours.
FLOYD_LIMIT = 64
# Prefetch distance in table entries, which is long enough to hide a cache miss.
_AHEAD = 16

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def count_neighbors(indptr, vertices, fanout, start, stop, degrees, counts):
    """Count all neighbours, and those to sample, of vertices[start:stop]; fan-out -1 takes all."""
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch(indptr, np.int64(vertices[i + _AHEAD]))
        v = vertices[i]
        degree = indptr[v + 1] - indptr[v]
        degrees[i] = degree
        counts[i] = degree if fanout < 0 or degree < fanout else fanout


@_compile
def prefix_sum(counts, offsets):
    """Compute offsets[i] = counts[0] + ... + counts[i - 1]."""
    total = np.int64(0)
    offsets[0] = 0
    for i in range(len(counts)):
        total += counts[i]
        offsets[i + 1] = total


@_compile
def sample_neighbors(indptr, indices, vertices, offsets, key, start, stop, positions, neighbors):
    """Sample neighbours of vertices[start:stop] uniformly without replacement.

    Small fan-outs use Floyd's algorithm (Bentley and Floyd, "A sample of brilliance", CACM 1987), and large
    ones selection sampling (Knuth, volume 2, algorithm S). `positions` is scratch memory with the length of
    `neighbors`: positions are computed first, so that reads of `indices` can be prefetched.
    """
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch(indptr, np.int64(vertices[i + _AHEAD]))
        first = indptr[vertices[i]]
        degree = indptr[vertices[i] + 1] - first
        begin = offsets[i]
        count = offsets[i + 1] - begin
        if count == degree:
            # The hardware prefetcher loads the next cache lines.
            prefetch(indices, np.int64(first))
            for k in range(count):
                positions[begin + k] = first + k
            continue
        stream = vertex_stream(key, np.uint64(vertices[i]))
        if count <= FLOYD_LIMIT:
            for k in range(count):
                last = degree - count + k
                pick = first + np.int64(random_below(random_bits(stream, np.uint64(k)), np.uint64(last + 1)))
                for taken in range(begin, begin + k):
                    if positions[taken] == pick:
                        pick = first + last
                        break
                positions[begin + k] = pick
                prefetch(indices, pick)
        else:
            k = 0
            for candidate in range(degree):
                left = np.uint64(degree - candidate)
                if random_below(random_bits(stream, np.uint64(candidate)), left) < np.uint64(count - k):
                    positions[begin + k] = first + candidate
                    prefetch(indices, np.int64(first + candidate))
                    k += 1
                    if k == count:
                        break
    for e in range(offsets[start], offsets[stop]):
        neighbors[e] = indices[positions[e]]


@_compile
def relabel(destinations, neighbors, local, sources, columns):
    """Assign local ids to the vertices of a block; return the number of sources.

    Destinations are first, followed by other sources in order of appearance. `local` is scratch memory with
    one entry per vertex of the graph, all -1 before and after the call.
    """
    num = len(destinations)
    for i in range(num):
        local[destinations[i]] = i
        sources[i] = destinations[i]
    for e in range(len(neighbors)):
        if e + _AHEAD < len(neighbors):
            prefetch(local, np.int64(neighbors[e + _AHEAD]))
        u = neighbors[e]
        at = local[u]
        if at < 0:
            at = num
            local[u] = at
            sources[num] = u
            num += 1
        columns[e] = at
    for i in range(num):
        local[sources[i]] = -1
    return num


@_compile
def transpose(indptr, columns, num_src, out_indptr, out_rows, out_edges):
    """Build CSR over outgoing edges with a counting sort: ascending destinations, and edge positions."""
    for j in range(num_src + 1):
        out_indptr[j] = 0
    for e in range(len(columns)):
        out_indptr[columns[e] + 1] += 1
    for j in range(num_src):
        out_indptr[j + 1] += out_indptr[j]
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            j = columns[e]
            at = out_indptr[j]
            out_rows[at] = i
            out_edges[at] = e
            out_indptr[j] = at + 1
    for j in range(num_src, 0, -1):
        out_indptr[j] = out_indptr[j - 1]
    out_indptr[0] = 0


@_compile
def find_edges(indptr, indices, vertices, offsets, neighbors, start, stop, edges):
    """Find the positions of the edges from `neighbors` to vertices[start:stop].

    Return the position of a neighbour whose edge is missing or not unique; -1 if all edges were found.
    """
    for i in range(start, stop):
        first, last = indptr[vertices[i]], indptr[vertices[i] + 1]
        for k in range(offsets[i], offsets[i + 1]):
            e = first + np.searchsorted(indices[first:last], neighbors[k])
            if e == last or indices[e] != neighbors[k] or (e + 1 < last and indices[e + 1] == neighbors[k]):
                return k
            edges[k] = e
    return -1


@_compile
def copy_rows(offsets, values, rows, new_offsets, start, stop, out):
    """Copy row rows[i] of `values` to row i of `out` for i in start..stop-1. Both arrays are in CSR order."""
    for i in range(start, stop):
        at = new_offsets[i]
        for e in range(offsets[rows[i]], offsets[rows[i] + 1]):
            out[at] = values[e]
            at += 1


@_compile
def find_excluded(vertices, offsets, neighbors, types, rows, starts, codes, new_offsets, dropped):
    """Find excluded edges among sampled edges, and compute the offsets of the remaining neighbours.

    Return the number of positions written to `dropped`.
    """
    num = 0
    new_offsets[0] = 0
    for i in range(len(vertices)):
        row = rows[vertices[i]]
        if row >= 0:
            for e in range(offsets[i], offsets[i + 1]):
                code = np.int64(neighbors[e])
                if types is not None:
                    code += np.int64(types[e]) * len(rows)
                low, high = starts[row], starts[row + 1]
                while low < high:
                    middle = (low + high) >> 1
                    if codes[middle] < code:
                        low = middle + 1
                    else:
                        high = middle
                if low < starts[row + 1] and codes[low] == code:
                    dropped[num] = e
                    num += 1
        new_offsets[i + 1] = offsets[i + 1] - num
    return num


@_compile
def close_gaps(values, dropped):
    """Remove the entries at the positions `dropped`, which are sorted and not empty, in place."""
    at = dropped[0]
    for k in range(len(dropped)):
        end = dropped[k + 1] if k + 1 < len(dropped) else len(values)
        for e in range(dropped[k] + 1, end):
            values[at] = values[e]
            at += 1


_11 = np.uint64(11)
_UNIT = 2.0**-53
_0 = np.uint64(0)


@nb.njit("uint8(uint64, uint64, float64)", inline="always", cache=True, nogil=True)
def is_sampled(key, vertex, probability):
    """Return whether a vertex is sampled with a key, which happens with the given probability."""
    number = (np.float64(random_bits(vertex_stream(key, vertex), _0) >> _11) + 1.0) * _UNIT
    return number <= probability


@_compile
def add_importance(indptr, indices, in_degrees, vertices, sums, found):
    """Add 1 / ((d_v + 1) (d_u + 1)) to sums[u] for every edge from u to one of the vertices v.

    `sums` has one entry per vertex of the graph. Sources whose sum was 0 are written to `found` in the order
    of their discovery; their number is returned.
    """
    num = 0
    for i in range(len(vertices)):
        v = vertices[i]
        of_row = 1.0 / (in_degrees[v] + 1.0)
        for e in range(indptr[v], indptr[v + 1]):
            u = indices[e]
            if sums[u] == 0.0:
                found[num] = u
                num += 1
            sums[u] += of_row / (in_degrees[u] + 1.0)
    return num


@_compile
def count_sampled(indptr, indices, vertices, key, probabilities, start, stop, counts):
    """Count the in-edges of each of vertices[start:stop] that have a sampled source."""
    for i in range(start, stop):
        count = 0
        for e in range(indptr[vertices[i]], indptr[vertices[i] + 1]):
            u = indices[e]
            if is_sampled(key, np.uint64(u), probabilities[u]):
                count += 1
        counts[i] = count


@_compile
def write_sampled(
    indptr, indices, vertices, offsets, key, probabilities, scale_weights, start, stop, neighbors, weights
):
    """Write the edges that `count_sampled` has counted, in row order, and inverse probabilities of sources.

    If `scale_weights`, the weights of each vertex are scaled such that their sum is its degree.
    """
    for i in range(start, stop):
        first, last = indptr[vertices[i]], indptr[vertices[i] + 1]
        at = offsets[i]
        total = 0.0
        for e in range(first, last):
            u = indices[e]
            if is_sampled(key, np.uint64(u), probabilities[u]):
                neighbors[at] = u
                weights[at] = 1.0 / probabilities[u]
                total += 1.0 / probabilities[u]
                at += 1
        if scale_weights and total > 0.0:
            for k in range(offsets[i], at):
                weights[k] *= (last - first) / total


# Number of edges to scan linearly before a binary search for the end of the run.
_WALKED = 16


@_compile
def find_run_end(types, first, last):
    """Find the end of the run that begins at `first`, which is at most `last`."""
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
    """Count all neighbours, and those to sample, of vertices[start:stop]; `fanouts` are [R], -1: all."""
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
    """Sample `count` of `degree` positions from `first` on without replacement; see `sample_neighbors`."""
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
    """Sample neighbours of vertices[start:stop] per relation, uniformly without replacement."""
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
    """Count the runs and the edges of each relation in a block, [R]."""
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
    """Assign numbers to the runs of a block with E edges and P runs, by relation and then by destination.

    `next_run` and `next_edge` [R] are the first run and edge of each relation, and are overwritten. The
    outputs are `run_indptr` [P + 1], the offsets of the runs in the new edge order; `run_rows` [P], their
    destinations; `edge_numbers` [E], the position in the block of each edge in the new order; and
    `row_indptr` [n + 1] and `row_runs` [P], the runs of each destination as CSR.
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
