"""Compiled loops of attention over segments. All release the interpreter lock and write disjoint rows.

A segment is the edges of one relation into one destination. Sums run in the order of the edges, so equal rows
give equal bits for any number of threads.
"""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

import numpy as np

from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(
    nogil=True,
    cache=True,
    error_model="numpy",
    boundscheck=False,
    fastmath={"contract", "reassoc", "nsz"},
)


@_compile
def segment_dots(indptr, columns, q, k, out, start, stop):
    """Compute out[e, h] = q[p, h] . k[columns[e], h] for segments start:stop, [P, H, d] and [S, H, d]."""
    heads, width = q.shape[1], q.shape[2]
    for p in range(start, stop):
        for e in range(indptr[p], indptr[p + 1]):
            row = k[columns[e]]
            for h in range(heads):
                total = out.dtype.type(0)
                for i in range(width):
                    total += q[p, h, i] * row[h, i]
                out[e, h] = total


@_compile
def sum_weighted(indptr, columns, weights, x, out, start, stop):
    """Compute out[p, h] = sum_e weights[e, h] x[columns[e], h] for segments start:stop.

    Heads may share the rows of x.
    """
    heads, width = out.shape[1], out.shape[2]
    shared = x.shape[1] == 1
    for p in range(start, stop):
        for h in range(heads):
            for i in range(width):
                out[p, h, i] = 0
        for e in range(indptr[p], indptr[p + 1]):
            row = x[columns[e]]
            for h in range(heads):
                a = row[0] if shared else row[h]
                weight = weights[e, h]
                for i in range(width):
                    out[p, h, i] += weight * a[i]


@_compile
def sum_weighted_backward(t_indptr, t_segments, t_edges, weights, grad, out, start, stop):
    """Compute the transpose of `sum_weighted`, for sources start:stop.

    out[j, h] = sum_e weights[e, h] grad[segment of e, h]. If heads share source rows, their sums are added.
    """
    heads, width = grad.shape[1], grad.shape[2]
    shared = out.shape[1] == 1
    for j in range(start, stop):
        for h in range(out.shape[1]):
            for i in range(width):
                out[j, h, i] = 0
        for t in range(t_indptr[j], t_indptr[j + 1]):
            e, g = t_edges[t], grad[t_segments[t]]
            for h in range(heads):
                o = out[j, 0] if shared else out[j, h]
                weight = weights[e, h]
                for i in range(width):
                    o[i] += weight * g[h, i]


@_compile
def dots_with_gradient(indptr, columns, grad, x, out, start, stop):
    """Compute out[e, h] = grad[p, h] . x[columns[e], h] for segments start:stop; heads may share x."""
    heads, width = grad.shape[1], grad.shape[2]
    shared = x.shape[1] == 1
    for p in range(start, stop):
        for e in range(indptr[p], indptr[p + 1]):
            row = x[columns[e]]
            for h in range(heads):
                a = row[0] if shared else row[h]
                total = out.dtype.type(0)
                for i in range(width):
                    total += grad[p, h, i] * a[i]
                out[e, h] = total


@_compile
def add_pairs(indptr, columns, first_columns, segment_scores, source_scores, out, start, stop):
    """Compute out[e, h] = segment_scores[p, h] + source_scores[columns[e], first_columns[p] + h]."""
    heads = segment_scores.shape[1]
    for p in range(start, stop):
        for e in range(indptr[p], indptr[p + 1]):
            row = source_scores[columns[e]]
            for h in range(heads):
                out[e, h] = segment_scores[p, h] + row[first_columns[p] + h]


@_compile
def sum_segments(indptr, values, out, start, stop):
    """Compute out[p, h] = sum_e values[e, h] for segments start:stop."""
    for p in range(start, stop):
        for h in range(out.shape[1]):
            out[p, h] = 0
        for e in range(indptr[p], indptr[p + 1]):
            for h in range(out.shape[1]):
                out[p, h] += values[e, h]


@_compile
def sum_per_source(t_indptr, t_segments, t_edges, first_columns, values, out, start, stop):
    """Compute out[j, first_columns[p] + h] = sum_e values[e, h] over the edges e in segments p."""
    for j in range(start, stop):
        for c in range(out.shape[1]):
            out[j, c] = 0
        for t in range(t_indptr[j], t_indptr[j + 1]):
            first = first_columns[t_segments[t]]
            for h in range(values.shape[1]):
                out[j, first + h] += values[t_edges[t], h]


@_compile
def segment_softmax(row_indptr, row_segments, segment_indptr, scores, out, start, stop):
    """Compute the softmax of scores [E, H] over the edges of all segments of rows start:stop."""
    heads = scores.shape[1]
    for i in range(start, stop):
        for h in range(heads):
            top = -np.inf
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = row_segments[r]
                for e in range(segment_indptr[p], segment_indptr[p + 1]):
                    top = max(top, scores[e, h])
            total = scores.dtype.type(0)
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = row_segments[r]
                for e in range(segment_indptr[p], segment_indptr[p + 1]):
                    out[e, h] = np.exp(scores[e, h] - top)
                    total += out[e, h]
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = row_segments[r]
                for e in range(segment_indptr[p], segment_indptr[p + 1]):
                    out[e, h] /= total


@_compile
def segment_softmax_backward(row_indptr, row_segments, segment_indptr, weights, grad, out, start, stop):
    """Compute the gradient of `segment_softmax` with respect to the scores."""
    heads = weights.shape[1]
    for i in range(start, stop):
        for h in range(heads):
            mean = weights.dtype.type(0)
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = row_segments[r]
                for e in range(segment_indptr[p], segment_indptr[p + 1]):
                    mean += weights[e, h] * grad[e, h]
            for r in range(row_indptr[i], row_indptr[i + 1]):
                p = row_segments[r]
                for e in range(segment_indptr[p], segment_indptr[p + 1]):
                    out[e, h] = weights[e, h] * (grad[e, h] - mean)
