"""Compiled loops over rows that are in three matrices: own ones, fetched ones and cached ones.

All release the interpreter lock and write disjoint rows. Matrices are float32, or the 16 bits of halves
(uint16) or of bfloat16 (int16). Sums run in the order of the edges of a row, wherever the rows are.
"""

# mypy: disable-error-code="no-untyped-def,call-arg,unreachable"
from __future__ import annotations

import numba as nb
import numpy as np

from hyrt.distributed.rows.address_kernels import is_cached, place
from hyrt.machine.intrinsics import prefetch, prefetch_row, value

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
def _ask_for(address, own, fetched, cached):
    """Ask for the row at an address."""
    if address >= 0:
        prefetch_row(own.reshape(own.size), own.shape[1], np.int64(address))
    elif is_cached(address):
        prefetch_row(cached.reshape(cached.size), cached.shape[1], np.int64(place(address)))
    else:
        prefetch_row(fetched.reshape(fetched.size), fetched.shape[1], np.int64(place(address)))


@_compile
def _copy(address, own, fetched, cached, out):
    """Out = the row at an address."""
    if address >= 0:
        a = own[address]
        for k in range(len(out)):
            out[k] = value(a[k])
    elif is_cached(address):
        b = cached[place(address)]
        for k in range(len(out)):
            out[k] = value(b[k])
    else:
        c = fetched[place(address)]
        for k in range(len(out)):
            out[k] = value(c[k])


@_compile
def _add(address, own, fetched, cached, factor, total):
    """Total += factor times the row at an address."""
    if address >= 0:
        a = own[address]
        for k in range(len(total)):
            total[k] += factor * value(a[k])
    elif is_cached(address):
        b = cached[place(address)]
        for k in range(len(total)):
            total[k] += factor * value(b[k])
    else:
        c = fetched[place(address)]
        for k in range(len(total)):
            total[k] += factor * value(c[k])


@_compile
def _raise_to(address, own, fetched, cached, best):
    """Best = the larger of it and the row at an address, column by column."""
    if address >= 0:
        a = own[address]
        for k in range(len(best)):
            best[k] = max(best[k], value(a[k]))
    elif is_cached(address):
        b = cached[place(address)]
        for k in range(len(best)):
            best[k] = max(best[k], value(b[k]))
    else:
        c = fetched[place(address)]
        for k in range(len(best)):
            best[k] = max(best[k], value(c[k]))


@_compile
def gather(addresses, own, fetched, cached, out, start, stop):
    """out[i] = the row at addresses[i]."""
    for i in range(start, min(start + _EDGES_AHEAD, stop)):
        _ask_for(addresses[i], own, fetched, cached)
    for i in range(start, stop):
        if i + _EDGES_AHEAD < stop:
            _ask_for(addresses[i + _EDGES_AHEAD], own, fetched, cached)
        _copy(addresses[i], own, fetched, cached, out[i])


@_compile
def _ask_ahead(
    indptr, columns, addresses, self_addresses, source_scale, own, fetched, cached, i, start, stop
):
    """Ask for the rows that destinations soon after i need, and for the factors on them."""
    first = indptr[i] + _EDGES_AHEAD if i > start else indptr[i]
    for e in range(first, min(indptr[i + 1] + _EDGES_AHEAD, indptr[stop])):
        _ask_for(addresses[e], own, fetched, cached)
        if source_scale is not None:
            prefetch(source_scale, np.int64(columns[e]))
    if self_addresses is not None:
        if i + _OWN_AHEAD < stop:
            _ask_for(self_addresses[i + _OWN_AHEAD], own, fetched, cached)


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
    one = out.dtype.type(1)
    for i in range(start, stop):
        _ask_ahead(
            indptr, columns, addresses, self_addresses, source_scale, own, fetched, cached, i, start, stop
        )
        total = out[i, sum_at : sum_at + width]
        for k in range(width):
            total[k] = 0
        for e in range(indptr[i], indptr[i + 1]):
            factor = one
            if weights is not None:
                factor *= out.dtype.type(weights[e])
            if source_scale is not None:
                factor *= source_scale[columns[e]]
            _add(addresses[e], own, fetched, cached, factor, total)
        scale = row_scale[i]
        for k in range(width):
            total[k] *= scale
        if self_scale is not None:
            _add(self_addresses[i], own, fetched, cached, self_scale[i], total)
        if self_at is not None:
            _copy(self_addresses[i], own, fetched, cached, out[i, self_at : self_at + width])


@_compile
def aggregate_max(
    indptr, columns, addresses, self_addresses, own, fetched, cached, out, sum_at, self_at, start, stop
):
    """Elementwise maximum of source rows, 0 where there is none; arguments as of `aggregate`."""
    width = own.shape[1]
    for i in range(start, stop):
        _ask_ahead(indptr, columns, addresses, self_addresses, None, own, fetched, cached, i, start, stop)
        first, end = indptr[i], indptr[i + 1]
        best = out[i, sum_at : sum_at + width]
        if first == end:
            for k in range(width):
                best[k] = 0
        else:
            _copy(addresses[first], own, fetched, cached, best)
        for e in range(first + 1, end):
            _raise_to(addresses[e], own, fetched, cached, best)
        if self_at is not None:
            _copy(self_addresses[i], own, fetched, cached, out[i, self_at : self_at + width])
