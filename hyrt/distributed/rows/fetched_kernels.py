"""Compiled loops over rows that are in three matrices: own ones, fetched ones and cached ones.

All release the interpreter lock and write disjoint rows. Matrices are float32, or the 16 bits of halves
(uint16) or of bfloat16 (int16). Sums run in the order of the edges of a row, wherever the rows are.
"""

# mypy: disable-error-code="no-untyped-def,call-arg,unreachable"
from __future__ import annotations

import numba as nb
import numpy as np

from hyrt.distributed.rows.address_kernels import BITS, CACHED, FIRST
from hyrt.machine.intrinsics import prefetch, value

# Rows that are asked for ahead of their use, of edges and of destinations: enough to hide a miss in memory,
# few enough to stay in the second cache.
_EDGES_AHEAD = 32
_OWN_AHEAD = 4

_compile = nb.njit(
    nogil=True,
    cache=True,
    error_model="numpy",
    boundscheck=False,
    fastmath={"contract", "reassoc", "nsz"},
)


@_compile
def _copy(address, own, fetched, cached, width, out):
    """Copy the row at an address."""
    if address >= 0:
        a = own[address]
        for k in range(width):
            out[k] = value(a[k])
    elif (FIRST - address) & CACHED:
        b = cached[(FIRST - address) >> BITS]
        for k in range(width):
            out[k] = value(b[k])
    else:
        c = fetched[(FIRST - address) >> BITS]
        for k in range(width):
            out[k] = value(c[k])


@_compile
def _add(address, own, fetched, cached, width, factor, total):
    """Add the row at an address, times a factor."""
    if address >= 0:
        a = own[address]
        for k in range(width):
            total[k] += factor * value(a[k])
    elif (FIRST - address) & CACHED:
        b = cached[(FIRST - address) >> BITS]
        for k in range(width):
            total[k] += factor * value(b[k])
    else:
        c = fetched[(FIRST - address) >> BITS]
        for k in range(width):
            total[k] += factor * value(c[k])


@_compile
def _raise_to(address, own, fetched, cached, width, best):
    """Take the larger of what is there and of the row at an address, column by column."""
    if address >= 0:
        a = own[address]
        for k in range(width):
            best[k] = max(best[k], value(a[k]))
    elif (FIRST - address) & CACHED:
        b = cached[(FIRST - address) >> BITS]
        for k in range(width):
            best[k] = max(best[k], value(b[k]))
    else:
        c = fetched[(FIRST - address) >> BITS]
        for k in range(width):
            best[k] = max(best[k], value(c[k]))


@_compile
def _ask_for(addresses, start, stop, a, b, c, width):
    """Ask for the rows at some addresses, of matrices that are given as one array each."""
    # Written out here and below: numba counts references to the arrays that an inlined function is given.
    for e in range(start, stop):
        address = addresses[e]
        if address >= 0:
            first = np.int64(address) * width
            for at in range(first, first + width, 64 // a.itemsize):
                prefetch(a, at)
            prefetch(a, first + width - 1)
        elif (FIRST - address) & CACHED:
            first = np.int64((FIRST - address) >> BITS) * width
            for at in range(first, first + width, 64 // c.itemsize):
                prefetch(c, at)
            prefetch(c, first + width - 1)
        else:
            first = np.int64((FIRST - address) >> BITS) * width
            for at in range(first, first + width, 64 // b.itemsize):
                prefetch(b, at)
            prefetch(b, first + width - 1)


@_compile
def gather(addresses, own, fetched, cached, out, start, stop):
    """out[i] = the row at addresses[i]."""
    width = own.shape[1]
    a, b, c = own.reshape(own.size), fetched.reshape(fetched.size), cached.reshape(cached.size)
    _ask_for(addresses, start, min(start + _EDGES_AHEAD, stop), a, b, c, width)
    for i in range(start, stop):
        if i + _EDGES_AHEAD < stop:
            _ask_for(addresses, i + _EDGES_AHEAD, i + _EDGES_AHEAD + 1, a, b, c, width)
        _copy(addresses[i], own, fetched, cached, width, out[i])


@_compile
def _ask_ahead(indptr, columns, addresses, self_addresses, source_scale, a, b, c, width, i, start, stop):
    """Ask for the rows that destinations soon after i need, and for the factors on them."""
    first = indptr[i] + _EDGES_AHEAD if i > start else indptr[i]
    last = min(indptr[i + 1] + _EDGES_AHEAD, indptr[stop])
    _ask_for(addresses, first, last, a, b, c, width)
    if source_scale is not None:
        for e in range(first, last):
            prefetch(source_scale, np.int64(columns[e]))
    if self_addresses is not None:
        if i + _OWN_AHEAD < stop:
            _ask_for(self_addresses, i + _OWN_AHEAD, i + _OWN_AHEAD + 1, a, b, c, width)


@_compile
def aggregate(
    indptr, columns, addresses, self_addresses, own, fetched, cached, row_scale, source_scale, weights,
    self_scale, out, sum_at, self_at, start, stop,
):  # fmt: skip
    """As `hyrt.nn.operators.kernels.aggregate`, of a block that is read in place.

    `addresses` are those of the sources of edges, and `self_addresses` those of destinations, or None where
    their rows are not needed.
    """
    width = own.shape[1]
    a, b, c = own.reshape(own.size), fetched.reshape(fetched.size), cached.reshape(cached.size)
    one = out.dtype.type(1)
    for i in range(start, stop):
        _ask_ahead(indptr, columns, addresses, self_addresses, source_scale, a, b, c, width, i, start, stop)
        total = out[i, sum_at : sum_at + width]
        for k in range(width):
            total[k] = 0
        for e in range(indptr[i], indptr[i + 1]):
            factor = one
            if weights is not None:
                factor *= out.dtype.type(weights[e])
            if source_scale is not None:
                factor *= source_scale[columns[e]]
            address = addresses[e]
            if address >= 0:
                at = np.uint64(address) * np.uint64(width)
                for k in range(width):
                    total[k] += factor * value(a[at + np.uint64(k)])
            elif (FIRST - address) & CACHED:
                at = np.uint64((FIRST - address) >> BITS) * np.uint64(width)
                for k in range(width):
                    total[k] += factor * value(c[at + np.uint64(k)])
            else:
                at = np.uint64((FIRST - address) >> BITS) * np.uint64(width)
                for k in range(width):
                    total[k] += factor * value(b[at + np.uint64(k)])
        scale = row_scale[i]
        for k in range(width):
            total[k] *= scale
        if self_scale is not None:
            _add(self_addresses[i], own, fetched, cached, width, self_scale[i], total)
        if self_at is not None:
            _copy(self_addresses[i], own, fetched, cached, width, out[i, self_at : self_at + width])


@_compile
def aggregate_max(
    indptr, columns, addresses, self_addresses, own, fetched, cached, out, sum_at, self_at, start, stop
):
    """Elementwise maximum of source rows, 0 where there is none; arguments as of `aggregate`."""
    width = own.shape[1]
    a, b, c = own.reshape(own.size), fetched.reshape(fetched.size), cached.reshape(cached.size)
    for i in range(start, stop):
        _ask_ahead(indptr, columns, addresses, self_addresses, None, a, b, c, width, i, start, stop)
        first, end = indptr[i], indptr[i + 1]
        best = out[i, sum_at : sum_at + width]
        if first == end:
            for k in range(width):
                best[k] = 0
        else:
            _copy(addresses[first], own, fetched, cached, width, best)
        for e in range(first + 1, end):
            _raise_to(addresses[e], own, fetched, cached, width, best)
        if self_at is not None:
            _copy(self_addresses[i], own, fetched, cached, width, out[i, self_at : self_at + width])
