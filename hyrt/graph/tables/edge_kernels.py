"""Compiled loops that build the rows of an edge list, by target."""

from __future__ import annotations

import numpy as np

from hyrt.runtime.numba_cache import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def count_rows(sources, targets, undirected, drop_loops, counts):  # type: ignore[no-untyped-def]
    """Add each target's number of edges to counts [V] and return the number of self loops.

    Edges with a vertex below 0 are skipped.
    """
    loops = 0
    for i in range(len(sources)):
        u, v = sources[i], targets[i]
        if u < 0 or v < 0:
            continue
        if u == v:
            loops += 1
            if drop_loops:
                continue
        counts[v] += 1
        if undirected and u != v:
            counts[u] += 1
    return loops


@_compile
def scatter(sources, targets, undirected, drop_loops, low, high, cursor, entries):  # type: ignore[no-untyped-def]
    """Write the edges into vertices low..high-1 to their rows at cursor [high-low], which advances."""
    for i in range(len(sources)):
        u, v = sources[i], targets[i]
        if u < 0 or v < 0 or (u == v and drop_loops):
            continue
        if low <= v < high:
            entries[cursor[v - low]] = u
            cursor[v - low] += 1
        if undirected and u != v and low <= u < high:
            entries[cursor[u - low]] = v
            cursor[u - low] += 1


@_compile
def scatter_numbered(  # type: ignore[no-untyped-def]
    sources, targets, undirected, drop_loops, low, high, cursor, entries, first, numbers
):
    """Like `scatter`; also write the edge numbers, starting at `first`, to `numbers`."""
    for i in range(len(sources)):
        u, v = sources[i], targets[i]
        if u < 0 or v < 0 or (u == v and drop_loops):
            continue
        if low <= v < high:
            position = cursor[v - low]
            entries[position], numbers[position] = u, first + i
            cursor[v - low] = position + 1
        if undirected and u != v and low <= u < high:
            position = cursor[u - low]
            entries[position], numbers[position] = v, first + i
            cursor[u - low] = position + 1


@_compile
def merge_duplicates(starts, entries, numbers, weights, add_up, counts):  # type: ignore[no-untyped-def]
    """Keep the first of equal edges in each row; with `add_up`, it gets the sum of their weights.

    Sets counts [rows] to the remaining row lengths, and returns the remaining number of edges.
    """
    num_edges = 0
    for r in range(len(counts)):
        before = num_edges
        i = starts[r]
        while i < starts[r + 1]:
            j = i + 1
            total = np.float64(weights[i]) if len(weights) else 0.0
            while j < starts[r + 1] and entries[j] == entries[i]:
                if add_up:
                    total += weights[j]
                j += 1
            entries[num_edges], numbers[num_edges] = entries[i], numbers[i]
            if len(weights):
                weights[num_edges] = total
            num_edges += 1
            i = j
        counts[r] = num_edges - before
    return num_edges


@_compile
def find_duplicates(starts, entries, out):  # type: ignore[no-untyped-def]
    """Write the positions of entries that equal their predecessor to `out`, as far as they fit; return their
    total number.
    """
    found = 0
    for r in range(len(starts) - 1):
        for i in range(starts[r] + 1, starts[r + 1]):
            if entries[i] == entries[i - 1]:
                if found < len(out):
                    out[found] = i
                found += 1
    return found
