"""Compiled loops over rows in several matrices: read where they lie, fetched, and cached ones.

All release the interpreter lock and write disjoint rows. Which row it is says its address in memory
(`hyrt.distributed.rows.address_kernels.locate`). Values have the dtype of `own`, a matrix of this rank's
rows; where those that travel have another one, `other` is a matrix of it, else None, and the lowest bit of
the addresses of such rows is set. Matrices are float32, or the 16 bits of halves (uint16) or of bfloat16
(int16). Sums run in the order of the edges of a row, wherever the rows are.
"""

# mypy: disable-error-code="no-untyped-def,call-arg,unreachable"
from __future__ import annotations

import numpy as np

from hyrt.machine.intrinsics import element_at, prefetch, prefetch_at, value
from hyrt.machine.kernels.kept_kernels import nb

# Rows that are asked for ahead of their use, of edges and of destinations: enough to hide a miss in memory,
# few enough to stay in the second cache.
_EDGES_AHEAD = 32
_OWN_AHEAD = 4
_LINE = 64

_compile = nb.njit(
    nogil=True,
    cache=True,
    error_model="numpy",
    boundscheck=False,
    fastmath={"contract", "reassoc", "nsz"},
)


@_compile
def _copy(row, own, other, out):
    """Copy the row at an address."""
    # One condition an `if`: only such branches are resolved when the kernel is compiled.
    if other is not None:
        if row & 1:
            for k in range(len(out)):
                out[k] = value(element_at(other, row - 1, k))
            return
    for k in range(len(out)):
        out[k] = value(element_at(own, row, k))


@_compile
def _add(row, own, other, factor, total):
    """Add the row at an address, times a factor."""
    if other is not None:
        if row & 1:
            for k in range(len(total)):
                total[k] += factor * value(element_at(other, row - 1, k))
            return
    for k in range(len(total)):
        total[k] += factor * value(element_at(own, row, k))


@_compile
def _raise_to(row, own, other, best):
    """Take the larger of what is there and of the row at an address, column by column."""
    if other is not None:
        if row & 1:
            for k in range(len(best)):
                best[k] = max(best[k], value(element_at(other, row - 1, k)))
            return
    for k in range(len(best)):
        best[k] = max(best[k], value(element_at(own, row, k)))


@_compile
def _ask_for(rows, start, stop, row_bytes):
    """Ask for the rows at some addresses."""
    for e in range(start, stop):
        first = rows[e]
        for at in range(first, first + row_bytes, _LINE):
            prefetch_at(at)
        prefetch_at(first + row_bytes - 1)


@_compile
def gather(rows, own, other, out, start, stop):
    """out[i] = the row at rows[i]."""
    row_bytes = own.shape[1] * own.itemsize
    _ask_for(rows, start, min(start + _EDGES_AHEAD, stop), row_bytes)
    for i in range(start, stop):
        _ask_for(rows, i + _EDGES_AHEAD, min(i + _EDGES_AHEAD + 1, stop), row_bytes)
        _copy(rows[i], own, other, out[i])


@_compile
def _ask_ahead(indptr, columns, rows, self_rows, source_scale, row_bytes, i, start, stop):
    """Ask for the rows that destinations soon after i need, and for the factors on them."""
    first = indptr[i] + _EDGES_AHEAD if i > start else indptr[i]
    last = min(indptr[i + 1] + _EDGES_AHEAD, indptr[stop])
    _ask_for(rows, first, last, row_bytes)
    if source_scale is not None:
        for e in range(first, last):
            prefetch(source_scale, np.int64(columns[e]))
    if self_rows is not None:
        _ask_for(self_rows, i + _OWN_AHEAD, min(i + _OWN_AHEAD + 1, stop), row_bytes)


@_compile
def aggregate(
    indptr, columns, rows, self_rows, own, other, row_scale, source_scale, weights, self_scale, out, sum_at,
    self_at, start, stop,
):  # fmt: skip
    """As `hyrt.nn.operators.kernels.aggregate`, of a block that is read in place.

    `rows` are the addresses of the sources of edges, and `self_rows` those of destinations, or None where
    their rows are not needed.
    """
    width = own.shape[1]
    row_bytes = width * own.itemsize
    one = out.dtype.type(1)
    for i in range(start, stop):
        _ask_ahead(indptr, columns, rows, self_rows, source_scale, row_bytes, i, start, stop)
        total = out[i, sum_at : sum_at + width]
        for k in range(width):
            total[k] = 0
        e, end = indptr[i], indptr[i + 1]
        if other is None:
            if weights is None:
                if source_scale is None:
                    while e + 4 <= end:
                        a, b, c, d = rows[e], rows[e + 1], rows[e + 2], rows[e + 3]
                        for k in range(width):
                            total[k] += (value(element_at(own, a, k)) + value(element_at(own, b, k))) + (
                                value(element_at(own, c, k)) + value(element_at(own, d, k))
                            )
                        e += 4
        while e < end:
            factor = one
            if weights is not None:
                factor *= out.dtype.type(weights[e])
            if source_scale is not None:
                factor *= source_scale[columns[e]]
            _add(rows[e], own, other, factor, total)
            e += 1
        scale = row_scale[i]
        for k in range(width):
            total[k] *= scale
        if self_scale is not None:
            _add(self_rows[i], own, other, self_scale[i], total)
        if self_at is not None:
            _copy(self_rows[i], own, other, out[i, self_at : self_at + width])


@_compile
def aggregate_max(indptr, columns, rows, self_rows, own, other, out, sum_at, self_at, start, stop):
    """Elementwise maximum of source rows, 0 where there is none; arguments as of `aggregate`."""
    width = own.shape[1]
    row_bytes = width * own.itemsize
    for i in range(start, stop):
        _ask_ahead(indptr, columns, rows, self_rows, None, row_bytes, i, start, stop)
        first, end = indptr[i], indptr[i + 1]
        best = out[i, sum_at : sum_at + width]
        if first == end:
            for k in range(width):
                best[k] = 0
        else:
            _copy(rows[first], own, other, best)
        for e in range(first + 1, end):
            _raise_to(rows[e], own, other, best)
        if self_at is not None:
            _copy(self_rows[i], own, other, out[i, self_at : self_at + width])
