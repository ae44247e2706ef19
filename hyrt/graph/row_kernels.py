"""Compiled loops that gather, quantize and dequantize feature rows.

All release the GIL and write disjoint rows. Rows are float32, float64, float16 bits (uint16), bfloat16 bits
(int16), or int8 codes with scales.
"""

# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

import numpy as np

from hyrt.graph.quantized.row_format import MAX_CODE
from hyrt.runtime.intrinsics import prefetch, prefetch_row, value
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import random_bits, vertex_stream

# Prefetch distance in rows: long enough to hide memory latency, short enough for the L2 cache.
_AHEAD = 32

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def gather_rows(x, rows, out, start, stop):
    """Compute out[i] = x[rows[i]]."""
    width = x.shape[1]
    flat = x.reshape(x.size)
    for i in range(start, min(start + _AHEAD, stop)):
        prefetch_row(flat, width, np.int64(rows[i]))
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch_row(flat, width, np.int64(rows[i + _AHEAD]))
        a = x[rows[i]]
        o = out[i]
        for k in range(width):
            o[k] = value(a[k])


@_compile
def gather_sparse_rows(indptr, columns, values, rows, out_indptr, out_columns, out_values, start, stop):
    """Copy the CSR rows `rows[start:stop]` to the positions in `out_indptr`."""
    for i in range(start, stop):
        at = out_indptr[i]
        for e in range(indptr[rows[i]], indptr[rows[i] + 1]):
            out_columns[at] = columns[e]
            out_values[at] = values[e]
            at += 1


@_compile
def densify(indptr, columns, values, out, start, stop):
    """Convert sparse rows to dense rows."""
    for i in range(start, stop):
        for k in range(out.shape[1]):
            out[i, k] = 0
        for e in range(indptr[i], indptr[i + 1]):
            out[i, columns[e]] = value(values[e])


# A smaller scale would be subnormal, so that dequantization would not invert quantization.
_MIN_SCALE = np.finfo(np.float32).tiny
_MAX_CODE = np.float32(MAX_CODE)
_40 = np.uint64(40)
_UNIT = np.float32(2.0**-24)


@_compile
def max_abs_rows(x, out, start, stop):
    """Compute out[i] = max |x[i]|; NaN if the row contains NaN."""
    for i in range(start, stop):
        a = x[i]
        largest = np.float32(0)
        bad = False
        for k in range(x.shape[1]):
            size = abs(value(a[k]))
            largest = max(largest, size)
            bad |= size != size
        out[i] = np.float32(np.nan) if bad else largest


@_compile
def compute_scales(largest, out, start, stop):
    """Compute the scales that map the largest absolute values to the largest code."""
    for i in range(start, stop):
        out[i] = max(largest[i] / _MAX_CODE, _MIN_SCALE) if largest[i] == largest[i] else largest[i]


@_compile
def quantize_rows(x, row_scales, column_scales, key, vertices, codes, start, stop):
    """Quantize rows to the nearest code, or with a key by unbiased stochastic rounding, with a random stream
    per vertex.
    """
    for i in range(start, stop):
        a, o = x[i], codes[i]
        if key is not None:
            stream = vertex_stream(key, np.uint64(vertices[i]))
        for k in range(x.shape[1]):
            number = value(a[k])
            if row_scales is not None:
                number /= row_scales[i]
            if column_scales is not None:
                number /= column_scales[k]
            if key is None:
                number = np.rint(number)
            else:
                draw = np.float32(random_bits(stream, np.uint64(k)) >> _40) * _UNIT
                number = np.floor(number + draw)
            o[k] = np.int8(min(max(number, -_MAX_CODE), _MAX_CODE))


@_compile
def gather_codes(x, scales, rows, out, out_scales, start, stop):
    """Copy the codes and scales of rows: out[i] = x[rows[i]]."""
    width = x.shape[1]
    flat = x.reshape(x.size)
    for i in range(start, min(start + _AHEAD, stop)):
        prefetch_row(flat, width, np.int64(rows[i]))
    for i in range(start, stop):
        if i + _AHEAD < stop:
            prefetch_row(flat, width, np.int64(rows[i + _AHEAD]))
        a, o = x[rows[i]], out[i]
        for k in range(width):
            o[k] = a[k]
        if scales is not None:
            out_scales[i] = scales[rows[i]]


@_compile
def dequantize_rows(x, row_scales, column_scales, rows, out, start, stop):
    """Dequantize rows: out[i] = x[rows[i]], or x[i] if `rows` is None."""
    width = x.shape[1]
    flat = x.reshape(x.size)
    for i in range(start, stop):
        if rows is not None:
            if i + _AHEAD < stop:
                prefetch_row(flat, width, np.int64(rows[i + _AHEAD]))
                if row_scales is not None:
                    prefetch(row_scales, np.int64(rows[i + _AHEAD]))
        j = i if rows is None else rows[i]
        a, o = x[j], out[i]
        if row_scales is None:
            for k in range(width):
                o[k] = value(a[k])
        else:
            scale = row_scales[j]
            for k in range(width):
                o[k] = scale * value(a[k])
        if column_scales is not None:
            for k in range(width):
                o[k] *= column_scales[k]
