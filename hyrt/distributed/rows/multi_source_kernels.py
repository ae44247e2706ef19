"""Compiled loops over rows in several matrices: local, fetched and cached rows.

All loops release the interpreter lock and write disjoint rows. A row is given by its memory address
(`hyrt.distributed.rows.location_kernels.locate`). `local` is a matrix of this rank's rows and determines the
dtype of local values. If transferred rows have a different dtype, `wire` is a matrix of that dtype (otherwise
None), and the lowest bit of the addresses of such rows is set. Matrices are float32, or the 16 bits of
float16 (uint16) or bfloat16 (int16) values. Sums run in the order of a row's edges, regardless of where the
rows are stored.
"""

# mypy: disable-error-code="no-untyped-def,call-arg,unreachable"

from __future__ import annotations

import numpy as np

from hyrt.runtime.intrinsics import element_at, prefetch, prefetch_at, value
from hyrt.runtime.numba_cache import nb

# Prefetch distances for rows of edges and of destinations: large enough to hide a cache miss, small enough
# to stay in the L2 cache.
_EDGE_DISTANCE = 32
_SELF_DISTANCE = 4
_LINE = 64

_compile_fastmath = nb.njit(
    nogil=True,
    cache=True,
    error_model="numpy",
    boundscheck=False,
    fastmath={"contract", "reassoc", "nsz"},
)


@_compile_fastmath
def _copy(row, local, wire, out):
    """Copy the row at an address."""
    # One condition per `if`: numba prunes only such branches at compile time.
    if wire is not None:
        if row & 1:
            for k in range(len(out)):
                out[k] = value(element_at(wire, row - 1, k))
            return
    for k in range(len(out)):
        out[k] = value(element_at(local, row, k))


@_compile_fastmath
def _add(row, local, wire, factor, total):
    """Add the row at an address, times a factor."""
    if wire is not None:
        if row & 1:
            for k in range(len(total)):
                total[k] += factor * value(element_at(wire, row - 1, k))
            return
    for k in range(len(total)):
        total[k] += factor * value(element_at(local, row, k))


@_compile_fastmath
def _update_max(row, local, wire, best):
    """Update `best` with its elementwise maximum with the row at an address."""
    if wire is not None:
        if row & 1:
            for k in range(len(best)):
                best[k] = max(best[k], value(element_at(wire, row - 1, k)))
            return
    for k in range(len(best)):
        best[k] = max(best[k], value(element_at(local, row, k)))


@_compile_fastmath
def _prefetch_rows(rows, start, stop, row_bytes):
    """Prefetch the rows at some addresses."""
    for e in range(start, stop):
        first = rows[e]
        for address in range(first, first + row_bytes, _LINE):
            prefetch_at(address)
        prefetch_at(first + row_bytes - 1)


@_compile_fastmath
def gather(rows, local, wire, out, start, stop):
    """Copy the row at address rows[i] to out[i]."""
    row_bytes = local.shape[1] * local.itemsize
    _prefetch_rows(rows, start, min(start + _EDGE_DISTANCE, stop), row_bytes)
    for i in range(start, stop):
        _prefetch_rows(rows, i + _EDGE_DISTANCE, min(i + _EDGE_DISTANCE + 1, stop), row_bytes)
        _copy(rows[i], local, wire, out[i])


@_compile_fastmath
def _prefetch_destination(indptr, columns, rows, self_rows, source_scale, row_bytes, i, start, stop):
    """Prefetch the rows and factors of destinations shortly after i."""
    first = indptr[i] + _EDGE_DISTANCE if i > start else indptr[i]
    last = min(indptr[i + 1] + _EDGE_DISTANCE, indptr[stop])
    _prefetch_rows(rows, first, last, row_bytes)
    if source_scale is not None:
        for e in range(first, last):
            prefetch(source_scale, np.int64(columns[e]))
    if self_rows is not None:
        _prefetch_rows(self_rows, i + _SELF_DISTANCE, min(i + _SELF_DISTANCE + 1, stop), row_bytes)


@_compile_fastmath
def aggregate(
    indptr, columns, rows, self_rows, local, wire, row_scale, source_scale, weights, self_scale, out, sum_at,
    self_at, start, stop,
):  # fmt: skip
    """Aggregate a block with rows read in place; see `hyrt.nn.operators.kernels.aggregate`.

    `rows` are the addresses of the edges' source rows, and `self_rows` the addresses of the destinations'
    rows (None if they are not needed).
    """
    width = local.shape[1]
    row_bytes = width * local.itemsize
    one = out.dtype.type(1)
    for i in range(start, stop):
        _prefetch_destination(indptr, columns, rows, self_rows, source_scale, row_bytes, i, start, stop)
        total = out[i, sum_at : sum_at + width]
        for k in range(width):
            total[k] = 0
        e, end = indptr[i], indptr[i + 1]
        if wire is None:
            if weights is None:
                if source_scale is None:
                    while e + 4 <= end:
                        a, b, c, d = rows[e], rows[e + 1], rows[e + 2], rows[e + 3]
                        for k in range(width):
                            total[k] += (value(element_at(local, a, k)) + value(element_at(local, b, k))) + (
                                value(element_at(local, c, k)) + value(element_at(local, d, k))
                            )
                        e += 4
        while e < end:
            factor = one
            if weights is not None:
                factor *= out.dtype.type(weights[e])
            if source_scale is not None:
                factor *= source_scale[columns[e]]
            _add(rows[e], local, wire, factor, total)
            e += 1
        scale = row_scale[i]
        for k in range(width):
            total[k] *= scale
        if self_scale is not None:
            _add(self_rows[i], local, wire, self_scale[i], total)
        if self_at is not None:
            _copy(self_rows[i], local, wire, out[i, self_at : self_at + width])


@_compile_fastmath
def aggregate_max(indptr, columns, rows, self_rows, local, wire, out, sum_at, self_at, start, stop):
    """Compute the elementwise maximum of source rows, 0 without edges; arguments are as in `aggregate`."""
    width = local.shape[1]
    row_bytes = width * local.itemsize
    for i in range(start, stop):
        _prefetch_destination(indptr, columns, rows, self_rows, None, row_bytes, i, start, stop)
        first, end = indptr[i], indptr[i + 1]
        best = out[i, sum_at : sum_at + width]
        if first == end:
            for k in range(width):
                best[k] = 0
        else:
            _copy(rows[first], local, wire, best)
        for e in range(first + 1, end):
            _update_max(rows[e], local, wire, best)
        if self_at is not None:
            _copy(self_rows[i], local, wire, out[i, self_at : self_at + width])
