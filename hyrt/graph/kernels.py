"""Compiled loops over edges, CSR rows and their transpose, relations, and links.

All release the GIL. Loops with bounds of rows or vertices write only in this range. In a heterogeneous graph,
an edge is encoded as relation * V + source until its row has been sorted.
"""

# mypy: disable-error-code="no-untyped-def,call-arg", disallow-untyped-decorators=False

from __future__ import annotations

import numpy as np

from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import GOLDEN, mix64, random_below, random_bits, vertex_stream

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def find_invalid_edge(sources, targets, bound):
    """Return the index of the first edge with an endpoint outside 0..bound-1, or -1."""
    for i in range(len(sources)):
        if sources[i] < 0 or sources[i] >= bound or targets[i] < 0 or targets[i] >= bound:
            return i
    return -1


@_compile
def count_edges(sources, targets, symmetric, self_loops, counts):
    """Add the number of entries of each target (if symmetric, of both endpoints) to counts [V]; self-loops
    count once.
    """
    for i in range(len(sources)):
        u, v = sources[i], targets[i]
        if u != v or self_loops:
            counts[v] += 1
            if symmetric and u != v:
                counts[u] += 1


@_compile
def scatter_edges(sources, targets, symmetric, self_loops, low, high, cursor, entries):
    """Write the edges into vertices low..high-1 at the cursor [high-low] of their row; advance the cursor."""
    for i in range(len(sources)):
        u, v = sources[i], targets[i]
        if u != v or self_loops:
            if low <= v < high:
                entries[cursor[v - low]] = u
                cursor[v - low] += 1
            if symmetric and u != v and low <= u < high:
                entries[cursor[u - low]] = v
                cursor[u - low] += 1


@_compile
def sort_range(entries, a, b):
    """Sort the entries a..b-1."""
    if b - a <= 24:
        for i in range(a + 1, b):
            x = entries[i]
            j = i - 1
            while j >= a and entries[j] > x:
                entries[j + 1] = entries[j]
                j -= 1
            entries[j + 1] = x
    else:
        entries[a:b].sort()


@_compile
def renumber_rows(indptr, entries, order, places, starts, first, last, out):
    """Write row order[r], sorted and renumbered by `places`, at starts[r], for r in first..last-1."""
    for r in range(first, last):
        at = starts[r]
        for e in range(indptr[order[r]], indptr[order[r] + 1]):
            out[at] = places[entries[e]]
            at += 1
        sort_range(out, starts[r], at)


@_compile
def sort_rows(starts, first, last, entries, counts):
    """Sort rows first..last-1 and remove duplicates; write the new length of each row to counts."""
    for r in range(first, last):
        a, b = starts[r], starts[r + 1]
        sort_range(entries, a, b)
        end = a
        for i in range(a, b):
            if i == a or entries[i] != entries[end - 1]:
                entries[end] = entries[i]
                end += 1
        counts[r] = end - a


@_compile
def sort_rows_with_values(starts, first, last, entries, values):
    """Sort rows first..last-1 stably, and permute the array `values` in the same way."""
    for r in range(first, last):
        a, b = starts[r], starts[r + 1]
        if b - a <= 24:
            for i in range(a + 1, b):
                x, n = entries[i], values[i]
                j = i - 1
                while j >= a and entries[j] > x:
                    entries[j + 1], values[j + 1] = entries[j], values[j]
                    j -= 1
                entries[j + 1], values[j + 1] = x, n
        else:
            order = np.argsort(entries[a:b], kind="mergesort")
            entries[a:b] = entries[a:b][order]
            values[a:b] = values[a:b][order]


@_compile
def compact_rows(starts, counts, entries):
    """Move the first counts[r] entries of all rows together; return the total number of entries."""
    at = 0
    for r in range(len(counts)):
        for i in range(starts[r], starts[r] + counts[r]):
            entries[at] = entries[i]
            at += 1
    return at


@_compile
def count_self_loops(indptr, indices, first, last, counts):
    """Write the number of self-loops in each of the rows first..last-1 to counts [V]."""
    for r in range(first, last):
        counts[r] = 0
        for i in range(indptr[r], indptr[r + 1]):
            counts[r] += indices[i] == r


@_compile
def mark_self_loops(indptr, indices, first, last, marks):
    """Mark the self-loops of rows first..last-1 in marks [E]."""
    for r in range(first, last):
        for i in range(indptr[r], indptr[r + 1]):
            marks[i] = indices[i] == r


@_compile
def hash_blocks(values, keys, first, last):
    """Return the sum of the hashes of the blocks first..last-1 of len(keys) integers each.

    A block's hash is a multilinear one, scrambled together with the block's number.
    """
    total = np.uint64(0)
    for block in range(first, last):
        start = block * len(keys)
        found = np.uint64(block) * GOLDEN
        for i in range(start, min(start + len(keys), len(values))):
            found += keys[i - start] * np.uint64(values[i])
        total += mix64(found)
    return total


@_compile
def hash_edge(key, u, v):
    """Return the random 64-bit hash of an undirected edge, which is equal for both directions."""
    low, high = np.uint64(min(u, v)), np.uint64(max(u, v))
    return mix64(mix64(np.uint64(key) + (low + np.uint64(1)) * GOLDEN) + (high + np.uint64(1)) * GOLDEN)


@_compile
def collect_edge_ranks(starts, entries, first_vertex, key, bound, ranks):
    """Write hashes below `bound` of edges (u, v) with u < v in these rows to ranks; return their count."""
    found = 0
    base = starts[0]
    for r in range(len(starts) - 1):
        v = first_vertex + r
        for i in range(starts[r] - base, starts[r + 1] - base):
            if entries[i] < v:
                rank = hash_edge(key, entries[i], v)
                if rank < bound:
                    if found < len(ranks):
                        ranks[found] = rank
                    found += 1
    return found


@_compile
def drop_low_ranks(starts, entries, first_vertex, key, bound, out, counts):
    """Copy the edges with a hash of at least `bound` to out, row by row; return their number."""
    at = 0
    base = starts[0]
    for r in range(len(starts) - 1):
        v = first_vertex + r
        before = at
        for i in range(starts[r] - base, starts[r + 1] - base):
            if hash_edge(key, entries[i], v) >= bound:
                out[at] = entries[i]
                at += 1
        counts[r] = at - before
    return at


@_compile
def is_symmetric_csr(indptr, indices, low, high):
    """Return whether edges u -> v and v -> u match for all u, v with low <= min(u, v) < high.

    Each row c has a cursor into its edges from higher vertices, which must be, in order, the rows i > c with
    an edge from c. The result is False if rows low..high-1 are not sorted.
    """
    at = np.empty(high - low, np.int64)
    for c in range(low, high):
        for e in range(indptr[c] + 1, indptr[c + 1]):
            if indices[e] < indices[e - 1]:
                return False
        first, last = indptr[c], indptr[c + 1]
        while first < last:
            middle = (first + last) // 2
            if indices[middle] > c:
                last = middle
            else:
                first = middle + 1
        at[c - low] = first
    for i in range(low, len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            c = indices[e]
            if c >= i or c >= high:
                break
            if c >= low:
                t = at[c - low]
                if t == indptr[c + 1] or indices[t] != i:
                    return False
                at[c - low] = t + 1
    return np.all(at == indptr[low + 1 : high + 1])


@_compile
def count_columns(indices, low, high, counts):
    """Count the edges of each column c with low <= c < high in counts[c]."""
    counts[low:high] = 0
    for e in range(len(indices)):
        c = indices[e]
        if low <= c < high:
            counts[c] += 1


@_compile
def transpose_rows(indptr, indices, t_indptr, low, high, t_indices):
    """Write rows low..high-1 of the transpose."""
    at = t_indptr[low:high].copy()
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            c = indices[e]
            if low <= c < high:
                t_indices[at[c - low]] = i
                at[c - low] += 1


@_compile
def transpose_edge_ids(indptr, indices, t_indptr, low, high, edges):
    """Write the original index of each edge in rows low..high-1 of the transpose."""
    at = t_indptr[low:high].copy()
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            c = indices[e]
            if low <= c < high:
                edges[at[c - low]] = e
                at[c - low] += 1


@_compile
def find_out_of_range(ids, bound):
    """Return the position of the first number outside 0..bound-1, or -1."""
    for i in range(len(ids)):
        if ids[i] < 0 or ids[i] >= bound:
            return i
    return -1


@_compile
def count_targets(targets, shift, low, high, counts):
    """Add the number of edges into each vertex in low..high-1 to counts [V]; `shift` is added to targets."""
    for i in range(len(targets)):
        v = np.int64(targets[i]) + shift
        if low <= v < high:
            counts[v] += 1


@_compile
def scatter_keys(sources, targets, code, shift, low, high, first, cursor, entries):
    """Write edges into vertices low..high-1 as source + `code`, at cursor[v - first] for vertex v."""
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
    """Merge duplicates in the sorted rows first..last-1 and sum their weights; write the new row lengths to
    counts.
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
    """Decode entries[i] to sources[i] and relations[i]."""
    for i in range(start, stop):
        key = np.int64(entries[i])
        relation = key // num_vertices
        relations[i] = relation
        sources[i] = key - relation * num_vertices


@_compile
def renumber_keys(indptr, indices, numbers, order, places, num_vertices, starts, first, last, keys):
    """Write row order[r], sorted, with sources renumbered by `places` and encoded, for r in first..last-1."""
    for r in range(first, last):
        at = starts[r]
        for e in range(indptr[order[r]], indptr[order[r] + 1]):
            keys[at] = np.int64(numbers[e]) * num_vertices + places[indices[e]]
            at += 1
        sort_range(keys, starts[r], at)


@_compile
def count_relation_edges(indptr, numbers, edges, longest, reached):
    """Count the edges, the maximum in-degree, and the destinations with edges of each relation, [R] each."""
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

    If `ordered`, rows must be strictly increasing by relation, then by source.
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


@_compile
def _lower_bound(indices, start, stop, source):
    """Return the first position in start..stop with a source of at least `source`; rows are sorted."""
    while start < stop:
        middle = (start + stop) >> 1
        if indices[middle] < source:
            start = middle + 1
        else:
            stop = middle
    return start


@_compile
def find_relation_edges(indptr, indices, types, pairs, relation, firsts, counts):
    """Find the position and the number (0 or 1) of each pair's edges in a relation; rows are sorted by
    relation first.
    """
    for i in range(len(pairs)):
        start, stop = indptr[pairs[i, 1]], indptr[pairs[i, 1] + 1]
        end = stop
        while start < stop:
            middle = (start + stop) >> 1
            kind = types[middle]
            if kind < relation or (kind == relation and indices[middle] < pairs[i, 0]):
                start = middle + 1
            else:
                stop = middle
        firsts[i] = start
        counts[i] = start < end and types[start] == relation and indices[start] == pairs[i, 0]


@_compile
def find_edges(indptr, indices, pairs, firsts, counts):
    """Find the position of the first edge and the number of edges of each pair (source, destination)."""
    for i in range(len(pairs)):
        row = pairs[i, 1]
        stop = indptr[row + 1]
        first = _lower_bound(indices, indptr[row], stop, pairs[i, 0])
        firsts[i] = first
        at = first
        while at < stop and indices[at] == pairs[i, 0]:
            at += 1
        counts[i] = at - first


@_compile
def _int_below(bits, bound):
    """Map 64 uniform bits to 0..bound-1 like `hyrt.runtime.rng.random_ints_below`."""
    if bound < 1 << 32:
        return np.int64(random_below(bits, np.uint64(bound)))
    return np.int64(np.float64(bits >> np.uint64(11)) * 2.0**-53 * bound)


@_compile
def _insert_once(values, num, value):
    """Insert a value into `num` ascending values unless it is present; return the new number of values."""
    at = _lower_bound(values, 0, num, value)
    if at < num and values[at] == value:
        return num
    for i in range(num, at, -1):
        values[i] = values[i - 1]
    values[at] = value
    return num + 1


@_compile
def _nth_free(excluded, num, n):
    """Return the n-th integer (from 0) that is not one of `num` ascending excluded values."""
    start, stop = 0, num
    while start < stop:
        middle = (start + stop) >> 1
        if excluded[middle] - middle <= n:
            start = middle + 1
        else:
            stop = middle
    return n + start


@_compile
def sample_endpoints(indptr, indices, links, end, low, high, key, first, excluded, drawn_by, out):
    """Sample distinct replacements in low..high-1 for endpoint `end` (0 or 1) of each link [m, 2], except
    known edges.

    Floyd's algorithm (Bentley and Floyd, CACM 1987) samples from the remaining vertices: all sets are equally
    likely, and each vertex needs one random number. The random streams begin at counter `first` of `key`.

    Row v of the CSR (indptr, indices) are the sorted vertices, possibly with duplicates, that have a known
    edge if v is the other endpoint. `out` [m, num] is padded with -1. Scratch arrays are `excluded`, which
    has at least the length of the longest row plus 2, and `drawn_by` [high - low], which is -1 initially.
    """
    num = out.shape[1]
    for i in range(len(links)):
        fixed, count, last = links[i, 1 - end], 0, np.int64(-1)
        for e in range(indptr[fixed], indptr[fixed + 1]):
            other = np.int64(indices[e])
            if low <= other < high and other != last:
                excluded[count] = other - low
                count += 1
                last = other
        for other in (links[i, 0], links[i, 1]):
            if low <= other < high:
                count = _insert_once(excluded, count, np.int64(other) - low)
        free = high - low - count
        stream = vertex_stream(key, np.uint64(i))
        for place in range(min(num, free)):
            bound = free - min(num, free) + place
            bits = random_bits(stream, np.uint64(first + place))
            n = _int_below(bits, bound + 1)
            if drawn_by[n] == i:
                n = bound
            drawn_by[n] = i
            out[i, place] = low + _nth_free(excluded, count, n)
