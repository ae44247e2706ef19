"""Compiled loops over the addresses of rows. All release the interpreter lock.

An address is one integer that says where a row is. From 0 on, it is one that is read where it lies: the low
bits, as many as `RowAddresses` says, are the number of its matrix, of which this rank's own has 0, and the
others its place there. -1 is nowhere here. Below that, -2 - address is four times the place in one of two
other matrices, plus 1 if it is the one of cached rows and not that of rows that were fetched for a step, plus
2 if the step has counted the cached row.
"""

# mypy: disable-error-code="no-untyped-def,call-arg,unreachable"
from __future__ import annotations

import numpy as np

from hyrt.machine.intrinsics import prefetch
from hyrt.machine.kernels.kept_kernels import nb

NOWHERE = -1
FIRST = -2
CACHED = 1
_COUNTED = 2
BITS = 2
# Entries of a table of vertices that are asked for ahead of their use: enough to hide a miss in memory.
_AHEAD = 16

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def meet(ids, table, wanted, num_wanted, cached, num_cached):
    """Note vertices whose rows are not here, and those whose rows are cached, each once.

    Returns
    -------
    How many of `wanted` and of `cached` are written now.
    """
    for i in range(len(ids)):
        if i + _AHEAD < len(ids):
            prefetch(table, np.int64(ids[i + _AHEAD]))
        v = ids[i]
        address = table[v]
        if address >= 0:
            continue
        if address == NOWHERE:
            # Any address of a fetched row, until it is known which.
            table[v] = FIRST
            wanted[num_wanted] = v
            num_wanted += 1
        else:
            if (FIRST - address) & (CACHED | _COUNTED) == CACHED:
                table[v] = address - _COUNTED
                cached[num_cached] = v
                num_cached += 1
    return num_wanted, num_cached


@_compile
def forget_counting(cached, table):
    """Undo what `meet` has noted of cached rows."""
    for i in range(len(cached)):
        table[cached[i]] += _COUNTED


@_compile
def group_by_home(vertices, homes, counts, grouped):
    """Vertices by the rank that has their rows, in their order within each; counts[rank] is how many."""
    for rank in range(len(counts)):
        counts[rank] = 0
    for i in range(len(vertices)):
        counts[homes[vertices[i]]] += 1
    ends = np.empty(len(counts), np.int64)
    total = 0
    for rank in range(len(counts)):
        ends[rank] = total
        total += counts[rank]
    for i in range(len(vertices)):
        rank = homes[vertices[i]]
        grouped[ends[rank]] = vertices[i]
        ends[rank] += 1


@_compile
def forget(vertices, table):
    """The rows of these vertices are nowhere here."""
    for i in range(len(vertices)):
        table[vertices[i]] = NOWHERE


@_compile
def point(vertices, table, is_cached):
    """The rows of these vertices are in this order in one of the other matrices."""
    kind = CACHED if is_cached else 0
    for i in range(len(vertices)):
        table[vertices[i]] = FIRST - kind - (i << BITS)


@_compile
def look_up(ids, table, out, start, stop):
    """out[i] = table[ids[i]]."""
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch(table, np.int64(ids[i + _AHEAD]))
        out[i] = table[ids[i]]


@_compile
def locate(ids, table, bits, here, fetched, cached, row_bytes, travelled_bytes, mark, out, start, stop):
    """out[i] = where in memory the row of ids[i] is.

    `bits` is as in `RowAddresses`, and what follows, as in `RowMatrices`.
    """
    low = (1 << bits) - 1
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch(table, np.int64(ids[i + _AHEAD]))
        address = np.int64(table[ids[i]])
        if address >= 0:
            out[i] = here[address & low] + (address >> bits) * row_bytes
        else:
            first = cached if (FIRST - address) & CACHED else fetched
            out[i] = first + ((FIRST - address) >> BITS) * travelled_bytes + mark


@_compile
def unpack(addresses, kinds, places):
    """kinds[i] is 0 for an own row, 1 for a fetched one, 2 for a cached one; places[i], its place there."""
    for i in range(len(addresses)):
        address = addresses[i]
        if address >= 0:
            kinds[i] = 0
            places[i] = address
        else:
            kinds[i] = 2 if (FIRST - address) & CACHED else 1
            places[i] = (FIRST - address) >> BITS
