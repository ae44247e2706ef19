"""Compiled loops over blocks, without atomics. All release the GIL and write disjoint rows.

Feature matrices are float32, float64, or 16-bit: float16 as uint16, bfloat16 as int16. Tests for None are
resolved when a kernel is compiled, so an absent factor costs nothing. Sums are in the order of a row's edges,
independent of thread and mini-batch, so equal rows give equal bits.
"""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

import numpy as np

from hyrt.runtime.intrinsics import prefetch, prefetch_row, value
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import random_bits, vertex_stream

# Prefetch distances of edges and destinations: large enough to hide cache misses, but within the L2 cache.
_EDGES_AHEAD = 32
_SELF_AHEAD = 4

_compile = nb.njit(
    nogil=True,
    cache=True,
    error_model="numpy",
    boundscheck=False,
    fastmath={"contract", "reassoc", "nsz"},
)


@_compile
def prefetch_ahead(indptr, columns, self_rows, source_scale, flat, width, i, start, stop):
    """Prefetch the rows of x, and their source scales, that the destinations after i need."""
    first = indptr[i] + _EDGES_AHEAD if i > start else indptr[i]
    for e in range(first, min(indptr[i + 1] + _EDGES_AHEAD, indptr[stop])):
        prefetch_row(flat, width, np.int64(columns[e]))
        if source_scale is not None:
            prefetch(source_scale, np.int64(columns[e]))
    if self_rows is not None:
        if i + _SELF_AHEAD < stop:
            prefetch_row(flat, width, np.int64(self_rows[i + _SELF_AHEAD]))


@_compile
def aggregate(
    indptr, columns, self_rows, x, row_scale, source_scale, weights, self_scale, out, sum_at, self_at,
    accumulate, start, stop,
):  # fmt: skip
    """Sum source rows with weights, and concatenate or add the destinations' own rows.

    out[i, sum_at:] = row_scale[i] * sum_e weights[e] * source_scale[columns[e]] * x[columns[e]]. With s =
    x[self_rows[i]] (x[i] if self_rows is None), out[i, self_at:] = s if self_at is not None, and
    self_scale[i] * s is added to the sum if self_scale is not None. If `accumulate` is not None, everything
    is added to `out` instead.
    """
    width = x.shape[1]
    flat = x.reshape(x.size)
    scratch = np.empty(0 if accumulate is None else width, out.dtype)
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        prefetch_ahead(indptr, columns, self_rows, source_scale, flat, width, i, start, stop)
        total = out[i, sum_at : sum_at + width] if accumulate is None else scratch
        for k in range(width):
            total[k] = 0
        if weights is None:
            if source_scale is None:
                e = first
                while e + 4 <= end:
                    a, b, c, d = x[columns[e]], x[columns[e + 1]], x[columns[e + 2]], x[columns[e + 3]]
                    for k in range(width):
                        total[k] += (value(a[k]) + value(b[k])) + (value(c[k]) + value(d[k]))
                    e += 4
                while e < end:
                    a = x[columns[e]]
                    for k in range(width):
                        total[k] += value(a[k])
                    e += 1
            else:
                for e in range(first, end):
                    a = x[columns[e]]
                    factor = source_scale[columns[e]]
                    for k in range(width):
                        total[k] += factor * value(a[k])
        else:
            for e in range(first, end):
                a = x[columns[e]]
                factor = out.dtype.type(weights[e])
                if source_scale is not None:
                    factor *= source_scale[columns[e]]
                for k in range(width):
                    total[k] += factor * value(a[k])
        scale = row_scale[i]
        for k in range(width):
            total[k] *= scale
        # Test one condition per `if`: numba can only resolve such branches when it compiles the kernel.
        if self_scale is not None:
            self_row = x[i] if self_rows is None else x[self_rows[i]]
            self_factor = self_scale[i]
            for k in range(width):
                total[k] += self_factor * value(self_row[k])
        if self_at is not None:
            self_row = x[i] if self_rows is None else x[self_rows[i]]
            self_out = out[i, self_at : self_at + width]
            if accumulate is None:
                for k in range(width):
                    self_out[k] = value(self_row[k])
            else:
                for k in range(width):
                    self_out[k] += value(self_row[k])
        if accumulate is not None:
            target = out[i, sum_at : sum_at + width]
            for k in range(width):
                target[k] += scratch[k]


@_compile
def aggregate_backward(
    t_indptr, t_rows, t_edges, num_dst, grad, row_scale, source_scale, weights, self_scale, out, sum_at,
    self_at, start, stop,
):  # fmt: skip
    """Compute the gradient of `aggregate` with respect to x for each source, over the transposed edges."""
    width = out.shape[1]
    for j in range(start, stop):
        row = out[j]
        for k in range(width):
            row[k] = 0
        for t in range(t_indptr[j], t_indptr[j + 1]):
            i = t_rows[t]
            factor = row_scale[i]
            if weights is not None:
                factor *= weights[t_edges[t]]
            g = grad[i, sum_at : sum_at + width]
            for k in range(width):
                row[k] += factor * g[k]
        if source_scale is not None:
            factor = source_scale[j]
            for k in range(width):
                row[k] *= factor
        if j < num_dst:
            if self_at is not None:
                g = grad[j, self_at : self_at + width]
                for k in range(width):
                    row[k] += g[k]
            if self_scale is not None:
                factor = self_scale[j]
                g = grad[j, sum_at : sum_at + width]
                for k in range(width):
                    row[k] += factor * g[k]


@_compile
def aggregate_max(indptr, columns, self_rows, x, out, winners, sum_at, self_at, start, stop):
    """Compute element-wise maxima of source rows (0 if none); `winners` receives argmax edges or -1."""
    width = x.shape[1]
    flat = x.reshape(x.size)
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        prefetch_ahead(indptr, columns, self_rows, None, flat, width, i, start, stop)
        best = out[i, sum_at : sum_at + width]
        for k in range(width):
            best[k] = 0
        if winners is not None:
            winner = winners[i]
            for k in range(width):
                winner[k] = -1 if first == end else first
        for e in range(first, end):
            a = x[columns[e]]
            if e == first:
                for k in range(width):
                    best[k] = value(a[k])
            elif winners is None:
                for k in range(width):
                    best[k] = max(best[k], value(a[k]))
            else:
                for k in range(width):
                    if value(a[k]) > best[k]:
                        best[k] = value(a[k])
                        winner[k] = e
        if self_at is not None:
            self_row = x[i] if self_rows is None else x[self_rows[i]]
            self_out = out[i, self_at : self_at + width]
            for k in range(width):
                self_out[k] = value(self_row[k])


@_compile
def aggregate_max_backward(
    t_indptr, t_rows, t_edges, num_dst, grad, winners, out, sum_at, self_at, start, stop
):
    """Compute the gradient of `aggregate_max`, which passes each element's gradient to its argmax edge."""
    width = out.shape[1]
    for j in range(start, stop):
        row = out[j]
        for k in range(width):
            row[k] = 0
        for t in range(t_indptr[j], t_indptr[j + 1]):
            i, e = t_rows[t], t_edges[t]
            g = grad[i, sum_at : sum_at + width]
            winner = winners[i]
            for k in range(width):
                row[k] += g[k] if winner[k] == e else 0
        if self_at is not None:
            if j < num_dst:
                g = grad[j, self_at : self_at + width]
                for k in range(width):
                    row[k] += g[k]


@_compile
def attend(
    indptr, columns, self_rows, x, u_src, u_dst, slope, alpha, derivative, self_alpha, self_derivative, out,
    factor, self_factor, start, stop,
):  # fmt: skip
    """Sum source rows weighted by attention: a softmax over a destination's edges and its self-loop.

    x is [num_src, S, f] with S = 1 (all heads read the same row) or S = H (one slice per head): score[e, h] =
    leaky(x[j] . u_src[h] + x[i] . u_dst[h]); alpha = softmax; out[h, i] = sum_e alpha[e, h] x[j]. For the
    backward pass, `alpha` and `self_alpha` receive the weights, and `derivative` and `self_derivative` the
    slopes of leaky. If `factor` and `self_factor` are not None, they multiply the weights after the softmax.
    """
    heads, width = u_src.shape
    slices = x.shape[1]
    flat = x.reshape(x.size)
    offset = np.empty(heads, out.dtype)
    top = np.empty(heads, out.dtype)
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        prefetch_ahead(indptr, columns, self_rows, None, flat, slices * width, i, start, stop)
        self_row = x[i] if self_rows is None else x[self_rows[i]]
        for h in range(heads):
            a = self_row[h] if slices > 1 else self_row[0]
            to = out.dtype.type(0)
            at = out.dtype.type(0)
            for k in range(width):
                to += value(a[k]) * u_dst[h, k]
                at += value(a[k]) * u_src[h, k]
            offset[h] = to
            score = at + to
            self_derivative[i, h] = 1 if score > 0 else slope
            score *= self_derivative[i, h]
            self_alpha[i, h] = score
            top[h] = score
        for e in range(first, end):
            row = x[columns[e]]
            for h in range(heads):
                a = row[h] if slices > 1 else row[0]
                at = out.dtype.type(0)
                for k in range(width):
                    at += value(a[k]) * u_src[h, k]
                score = at + offset[h]
                derivative[e, h] = 1 if score > 0 else slope
                score *= derivative[e, h]
                alpha[e, h] = score
                top[h] = max(top[h], score)
        for h in range(heads):
            weight = np.exp(self_alpha[i, h] - top[h])
            self_alpha[i, h] = weight
            total = weight
            for e in range(first, end):
                weight = np.exp(alpha[e, h] - top[h])
                alpha[e, h] = weight
                total += weight
            self_alpha[i, h] /= total
            a = self_row[h] if slices > 1 else self_row[0]
            o = out[h, i]
            weight = self_alpha[i, h]
            if self_factor is not None:
                weight *= self_factor[i, h]
            for k in range(width):
                o[k] = weight * value(a[k])
            for e in range(first, end):
                alpha[e, h] /= total
                weight = alpha[e, h]
                if factor is not None:
                    weight *= factor[e, h]
                row = x[columns[e]]
                a = row[h] if slices > 1 else row[0]
                for k in range(width):
                    o[k] += weight * value(a[k])


@_compile
def attend_backward_scores(
    indptr, columns, self_rows, x, grad, alpha, derivative, self_alpha, self_derivative, u_src_grad,
    u_dst_grad, d_score, self_d_score, d_offset, factor, self_factor, start, stop,
):  # fmt: skip
    """Compute the gradients of `attend` for its scores, and a chunk's share of those for u_src, u_dst."""
    heads, width = u_src_grad.shape
    slices = x.shape[1]
    flat = x.reshape(x.size)
    for h in range(heads):
        for k in range(width):
            u_src_grad[h, k] = 0
            u_dst_grad[h, k] = 0
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        prefetch_ahead(indptr, columns, self_rows, None, flat, slices * width, i, start, stop)
        self_row = x[i] if self_rows is None else x[self_rows[i]]
        for h in range(heads):
            g = grad[h, i]
            a = self_row[h] if slices > 1 else self_row[0]
            d = grad.dtype.type(0)
            for k in range(width):
                d += g[k] * value(a[k])
            if self_factor is not None:
                d *= self_factor[i, h]
            self_d_score[i, h] = d
            mean = self_alpha[i, h] * d
            for e in range(first, end):
                row = x[columns[e]]
                b = row[h] if slices > 1 else row[0]
                d = grad.dtype.type(0)
                for k in range(width):
                    d += g[k] * value(b[k])
                if factor is not None:
                    d *= factor[e, h]
                d_score[e, h] = d
                mean += alpha[e, h] * d
            d = self_alpha[i, h] * (self_d_score[i, h] - mean) * self_derivative[i, h]
            self_d_score[i, h] = d
            total = d
            for k in range(width):
                u_src_grad[h, k] += d * value(a[k])
            for e in range(first, end):
                d = alpha[e, h] * (d_score[e, h] - mean) * derivative[e, h]
                d_score[e, h] = d
                total += d
                row = x[columns[e]]
                b = row[h] if slices > 1 else row[0]
                for k in range(width):
                    u_src_grad[h, k] += d * value(b[k])
            d_offset[i, h] = total
            for k in range(width):
                u_dst_grad[h, k] += total * value(a[k])


@_compile
def attend_backward_rows(
    t_indptr, t_rows, t_edges, num_dst, grad, alpha, self_alpha, d_score, self_d_score, d_offset, u_src,
    u_dst, out, factor, self_factor, start, stop,
):  # fmt: skip
    """Compute the gradient of `attend` with respect to x [num_src, S, f], over the transposed edges."""
    heads, width = u_src.shape
    slices = out.shape[1]
    for j in range(start, stop):
        for s in range(slices):
            row = out[j, s]
            for k in range(width):
                row[k] = 0
        for h in range(heads):
            row = out[j, h] if slices > 1 else out[j, 0]
            score = grad.dtype.type(0)
            for t in range(t_indptr[j], t_indptr[j + 1]):
                e = t_edges[t]
                g = grad[h, t_rows[t]]
                weight = alpha[e, h]
                if factor is not None:
                    weight *= factor[e, h]
                score += d_score[e, h]
                for k in range(width):
                    row[k] += weight * g[k]
            offset = grad.dtype.type(0)
            if j < num_dst:
                g = grad[h, j]
                weight = self_alpha[j, h]
                if self_factor is not None:
                    weight *= self_factor[j, h]
                score += self_d_score[j, h]
                offset = d_offset[j, h]
                for k in range(width):
                    row[k] += weight * g[k]
            for k in range(width):
                row[k] += score * u_src[h, k] + offset * u_dst[h, k]


@_compile
def dropout_rows(x, vertices, key, threshold, scale, out, start, stop):
    """Zero each element with probability threshold / 65536, and multiply the others by `scale`.

    The mask depends on (key, vertex, column). A column has 16 bits; four columns share a random number.
    """
    width = x.shape[1]
    groups = (width + 3) // 4
    draws = np.empty(groups, np.uint64)
    # The lowest 16 bits of a random number belong to its first column, as in little-endian memory.
    columns = draws.view(np.uint16)
    column_threshold = np.uint16(threshold)
    for i in range(start, stop):
        stream = vertex_stream(key, np.uint64(vertices[i]))
        # The loops are separate, because the compiler can vectorize each one.
        for group in range(groups):
            draws[group] = random_bits(stream, np.uint64(group))
        a = x[i]
        o = out[i]
        for k in range(width):
            o[k] = value(a[k]) * scale if columns[k] >= column_threshold else 0


@_compile
def dropout_sparse_rows(indptr, columns, values, vertices, key, threshold, scale, out, start, stop):
    """Apply dropout to the stored values of sparse rows, with the same mask as for dense rows."""
    for i in range(start, stop):
        stream = vertex_stream(key, np.uint64(vertices[i]))
        for e in range(indptr[i], indptr[i + 1]):
            k = np.uint64(columns[e])
            bits = random_bits(stream, k >> np.uint64(2))
            keep = ((bits >> (np.uint64(16) * (k & np.uint64(3)))) & np.uint64(0xFFFF)) >= threshold
            out[e] = values[e] * scale if keep else 0
