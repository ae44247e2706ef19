"""Compiled loops over row locations, which release the interpreter lock.

A location is one integer that encodes where a vertex's row is stored. A value >= 0 is a row in local memory:
the low bits (`RowLocations.bits`) are the number of its matrix, 0 for this rank's matrix, and the other bits
are the row index. -1 means that the row is not on this machine. Lower values encode a row of the fetched or
the cached matrix: -2 - location is four times the row index, plus 1 for the cached matrix, plus 2 if the
current step has already counted the cached row.
"""

# mypy: disable-error-code="no-untyped-def,call-arg,unreachable"

from __future__ import annotations

import numpy as np

from hyrt.runtime.intrinsics import prefetch
from hyrt.runtime.numba_cache import nb

MISSING = -1
FIRST_REMOTE = -2
CACHED = 1
_COUNTED = 2
REMOTE_BITS = 2
# Prefetch distance in the location table: large enough to hide a cache miss.
_PREFETCH_DISTANCE = 16

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def mark_needed_rows(ids, table, missing, num_missing, cached, num_cached):
    """Collect vertices whose rows are missing and vertices whose rows are cached, without duplicates.

    Return the numbers of vertices in `missing` and in `cached`.
    """
    for i in range(len(ids)):
        if i + _PREFETCH_DISTANCE < len(ids):
            prefetch(table, np.int64(ids[i + _PREFETCH_DISTANCE]))
        v = ids[i]
        address = table[v]
        if address >= 0:
            continue
        if address == MISSING:
            # Mark as fetched; the row index is assigned later.
            table[v] = FIRST_REMOTE
            missing[num_missing] = v
            num_missing += 1
        else:
            if (FIRST_REMOTE - address) & (CACHED | _COUNTED) == CACHED:
                table[v] = address - _COUNTED
                cached[num_cached] = v
                num_cached += 1
    return num_missing, num_cached


@_compile
def clear_count_marks(cached, table):
    """Undo the marks that `mark_needed_rows` sets on cached rows."""
    for i in range(len(cached)):
        table[cached[i]] += _COUNTED


@_compile
def group_by_owner(vertices, owners, counts, grouped):
    """Group vertices by owner rank in stable order; counts[rank] is the number of vertices per rank."""
    for rank in range(len(counts)):
        counts[rank] = 0
    for i in range(len(vertices)):
        counts[owners[vertices[i]]] += 1
    ends = np.empty(len(counts), np.int64)
    total = 0
    for rank in range(len(counts)):
        ends[rank] = total
        total += counts[rank]
    for i in range(len(vertices)):
        rank = owners[vertices[i]]
        grouped[ends[rank]] = vertices[i]
        ends[rank] += 1


@_compile
def clear_locations(vertices, table):
    """Mark the rows of these vertices as missing."""
    for i in range(len(vertices)):
        table[vertices[i]] = MISSING


@_compile
def set_locations(vertices, table, is_cached):
    """Set the locations of these vertices to consecutive rows of the cached or the fetched matrix."""
    kind = CACHED if is_cached else 0
    for i in range(len(vertices)):
        table[vertices[i]] = FIRST_REMOTE - kind - (i << REMOTE_BITS)


@_compile
def look_up(ids, table, out, start, stop):
    """Compute out[i] = table[ids[i]]."""
    for i in range(start, stop):
        if i + _PREFETCH_DISTANCE < stop:
            prefetch(table, np.int64(ids[i + _PREFETCH_DISTANCE]))
        out[i] = table[ids[i]]


@_compile
def locate(
    ids,
    table,
    bits,
    local_matrices,
    fetched,
    cached,
    row_bytes,
    transferred_row_bytes,
    mark,
    out,
    start,
    stop,
):
    """Compute out[i], the memory address of the row of ids[i].

    `bits` is as in `RowLocations`; `local_matrices` to `mark` are as in `RowMatrices`.
    """
    low = (1 << bits) - 1
    for i in range(start, stop):
        if i + _PREFETCH_DISTANCE < stop:
            prefetch(table, np.int64(ids[i + _PREFETCH_DISTANCE]))
        address = np.int64(table[ids[i]])
        if address >= 0:
            out[i] = local_matrices[address & low] + (address >> bits) * row_bytes
        else:
            first = cached if (FIRST_REMOTE - address) & CACHED else fetched
            out[i] = first + ((FIRST_REMOTE - address) >> REMOTE_BITS) * transferred_row_bytes + mark


@_compile
def decode_locations(locations, kinds, row_indices):
    """Decode locations into kinds (0 local, 1 fetched, 2 cached) and row indices."""
    for i in range(len(locations)):
        address = locations[i]
        if address >= 0:
            kinds[i] = 0
            row_indices[i] = address
        else:
            kinds[i] = 2 if (FIRST_REMOTE - address) & CACHED else 1
            row_indices[i] = (FIRST_REMOTE - address) >> REMOTE_BITS
