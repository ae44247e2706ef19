"""Compiled loops over row locations, and over rows in several matrices."""

# mypy: disable-error-code="no-untyped-def,call-arg,unreachable"

from __future__ import annotations

import numpy as np

from hyrt.runtime.intrinsics import element_at, prefetch, prefetch_at, value
from hyrt.runtime.numba_cache import nb

# A location is an integer that encodes where a vertex's row is stored. A value >= 0 is a row in local or
# shared memory: the low bits (`RowLocations.bits`) are the number of its matrix, 0 for this rank's matrix,
# and the other bits are the row index. -1 means that the row is not on this machine. Lower values encode a
# row of the fetched or the cached matrix: -2 - location is four times the row index, plus 1 for the cached
# matrix, plus 2 if the current step has already counted the cached row.
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
            # Mark the row as fetched; its row index is assigned later.
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
    """Clear the marks that `mark_needed_rows` has set on cached rows."""
    for i in range(len(cached)):
        table[cached[i]] += _COUNTED


@_compile
def group_by_owner(vertices, owners, counts, grouped):
    """Group vertices by owner rank in stable order; counts[rank] is the number of a rank's vertices."""
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
    """Set the locations of these vertices to consecutive rows of the matrix of cached or fetched rows."""
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


# Prefetch distances for the rows of edges and of destinations: large enough to hide a cache miss, and small
# enough that the rows stay in the L2 cache.
_EDGE_DISTANCE = 32
_SELF_DISTANCE = 4
_LINE = 64

# These loops write disjoint rows. A row is given by its memory address, as computed by `locate`. `local` is
# the matrix of this rank's rows and determines the dtype of local values. If transferred rows have a
# different dtype, `wire` is a matrix of that dtype (otherwise None), and the lowest bit of the addresses of
# transferred rows is set. Matrices are float32, or the 16 bits of float16 (uint16) or bfloat16 (int16)
# values. Sums run in the order of a row's edges, regardless of where the rows are stored.
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
    # Nest the conditions: numba prunes a branch at compile time only if it has a single condition.
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
    """Compute out[i], a copy of the row at address rows[i]."""
    row_bytes = local.shape[1] * local.itemsize
    _prefetch_rows(rows, start, min(start + _EDGE_DISTANCE, stop), row_bytes)
    for i in range(start, stop):
        _prefetch_rows(rows, i + _EDGE_DISTANCE, min(i + _EDGE_DISTANCE + 1, stop), row_bytes)
        _copy(rows[i], local, wire, out[i])


@_compile_fastmath
def _prefetch_destination(indptr, columns, rows, self_rows, source_scale, row_bytes, i, start, stop):
    """Prefetch the rows and scale factors of destinations shortly after i."""
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
    """Aggregate over a block and read the rows in place; see `hyrt.nn.operators.kernels.aggregate`.

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
    """Compute the elementwise maximum of source rows, or 0 without edges; arguments are as in `aggregate`."""
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
