"""Compiled loops that quantize, gather and dequantize feature rows.

All release the GIL and write disjoint rows. Rows are float32, the 16 bits of halves (uint16) or
of bfloat16 (int16), or codes of int8; scales that are None cost nothing.
"""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

import numpy as np

from hyrt.graph.narrow.row_format import MOST_CODE
from hyrt.machine.generator import random_bits, vertex_stream
from hyrt.machine.intrinsics import prefetch, prefetch_row, value
from hyrt.machine.kernels.kept_kernels import nb

_AHEAD = 32
# A smaller scale would be subnormal, and dequantization would not invert quantization.
_MIN_SCALE = np.finfo(np.float32).tiny
_MOST = np.float32(MOST_CODE)
_40 = np.uint64(40)
_UNIT = np.float32(2.0**-24)

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def largest_of_rows(x, out, start, stop):
    """Compute out[i] = max |x[i]|; NaN if the row contains NaN."""
    for i in range(start, stop):
        a = x[i]
        most = np.float32(0)
        bad = False
        for k in range(x.shape[1]):
            size = abs(value(a[k]))
            most = max(most, size)
            bad |= size != size
        out[i] = np.float32(np.nan) if bad else most


@_compile
def scales_of(largest, out, start, stop):
    """Compute the scales that map the largest values to the largest code."""
    for i in range(start, stop):
        out[i] = max(largest[i] / _MOST, _MIN_SCALE) if largest[i] == largest[i] else largest[i]


@_compile
def round_rows(x, row_scales, column_scales, key, vertices, codes, start, stop):
    """Quantize rows to the nearest code, or with a key by unbiased stochastic rounding.

    Row i uses the random stream of vertices[i].
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
            o[k] = np.int8(min(max(number, -_MOST), _MOST))


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
def widen_rows(x, row_scales, column_scales, rows, out, start, stop):
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
