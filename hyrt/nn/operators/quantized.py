"""Aggregation of quantized feature rows over a block, read in place and dequantized in registers."""

# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.nn.architecture import Aggregation
from hyrt.nn.operators.aggregate import GRAIN, aggregate_into, check_rows, check_weights, compute_scales
from hyrt.nn.operators.kernels import prefetch_ahead
from hyrt.runtime.intrinsics import value
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block

_compile = nb.njit(
    nogil=True,
    cache=True,
    error_model="numpy",
    boundscheck=False,
    fastmath={"contract", "reassoc", "nsz"},
)


@nb.njit(inline="always", cache=True)
def _factor(e, column, code_scales, source_scale, weights):
    """Return the factor on the codes of an edge's source."""
    factor = np.float32(1)
    if code_scales is not None:
        factor *= code_scales[column]
    if source_scale is not None:
        factor *= source_scale[column]
    if weights is not None:
        factor *= np.float32(weights[e])
    return factor


@_compile
def aggregate_codes(
    indptr, columns, self_rows, x, code_scales, column_scales, row_scale, source_scale, weights, self_scale,
    out, sum_at, self_at, start, stop,
):  # fmt: skip
    """Aggregate dequantized rows code_scales[j] * x[j] * column_scales (scales may be None)."""
    width = x.shape[1]
    flat = x.reshape(x.size)
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        prefetch_ahead(indptr, columns, self_rows, code_scales, flat, width, i, start, stop)
        total = out[i, sum_at : sum_at + width]
        for k in range(width):
            total[k] = 0
        e = first
        while e + 4 <= end:
            p, q, r, s = columns[e], columns[e + 1], columns[e + 2], columns[e + 3]
            a, b, c, d = x[p], x[q], x[r], x[s]
            fa = _factor(e, p, code_scales, source_scale, weights)
            fb = _factor(e + 1, q, code_scales, source_scale, weights)
            fc = _factor(e + 2, r, code_scales, source_scale, weights)
            fd = _factor(e + 3, s, code_scales, source_scale, weights)
            for k in range(width):
                total[k] += (fa * value(a[k]) + fb * value(b[k])) + (fc * value(c[k]) + fd * value(d[k]))
            e += 4
        while e < end:
            a = x[columns[e]]
            fa = _factor(e, columns[e], code_scales, source_scale, weights)
            for k in range(width):
                total[k] += fa * value(a[k])
            e += 1
        scale = row_scale[i]
        for k in range(width):
            total[k] *= scale
        j = i if self_rows is None else self_rows[i]
        self_row = x[j]
        code_scale = np.float32(1)
        if code_scales is not None:
            code_scale = code_scales[j]
        if self_scale is not None:
            self_factor = self_scale[i] * code_scale
            for k in range(width):
                total[k] += self_factor * value(self_row[k])
        if column_scales is not None:
            for k in range(width):
                total[k] *= column_scales[k]
        if self_at is not None:
            self_out = out[i, self_at : self_at + width]
            for k in range(width):
                self_out[k] = code_scale * value(self_row[k])
            if column_scales is not None:
                for k in range(width):
                    self_out[k] *= column_scales[k]


@_compile
def aggregate_codes_max(
    indptr, columns, self_rows, x, code_scales, column_scales, out, sum_at, self_at, start, stop
):
    """Compute the maximum of dequantized rows without argmax edges; see `kernels.aggregate_max`."""
    width = x.shape[1]
    flat = x.reshape(x.size)
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        prefetch_ahead(indptr, columns, self_rows, code_scales, flat, width, i, start, stop)
        best = out[i, sum_at : sum_at + width]
        for k in range(width):
            best[k] = 0
        for e in range(first, end):
            a = x[columns[e]]
            factor = _factor(e, columns[e], code_scales, None, None)
            if e == first:
                for k in range(width):
                    best[k] = factor * value(a[k])
            else:
                for k in range(width):
                    best[k] = max(best[k], factor * value(a[k]))
        # Column scales are positive, so the largest code in a column has the largest value.
        if column_scales is not None:
            for k in range(width):
                best[k] *= column_scales[k]
        if self_at is not None:
            j = i if self_rows is None else self_rows[i]
            self_row = x[j]
            code_scale = np.float32(1)
            if code_scales is not None:
                code_scale = code_scales[j]
            self_out = out[i, self_at : self_at + width]
            for k in range(width):
                self_out[k] = code_scale * value(self_row[k])
            if column_scales is not None:
                for k in range(width):
                    self_out[k] *= column_scales[k]


def aggregate_quantized_into(
    aggregation: Aggregation, block: Block, x: QuantizedRows, out: NDArray[np.float32], workers: Workers
) -> None:
    """Aggregate quantized rows of all vertices, read in place, into `out` float32; see `aggregate_into`."""
    matrix = x.matrix
    if matrix is not None:
        aggregate_into(aggregation, block, matrix, out, workers=workers)
        return
    check_rows(block, x.codes, (x.codes.dtype,))
    check_weights(aggregation, block)
    self_rows = block.destinations if block.in_place and aggregation.self_path != "none" else None
    edges = (block.indptr, block.columns, self_rows, x.codes, x.row_scales, x.column_scales)
    at = aggregation.columns(x.codes.shape[1])
    if aggregation.reduce == "max":

        def work(start: int, stop: int) -> None:
            aggregate_codes_max(*edges, out, *at, start, stop)

    else:
        s = compute_scales(aggregation, block, out.dtype)

        def work(start: int, stop: int) -> None:
            aggregate_codes(*edges, s.row, s.source, s.edge, s.self_loop, out, *at, start, stop)

    workers.run_rows(work, block.num_dst, GRAIN)
