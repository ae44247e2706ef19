"""Compiled loops over blocks. All release the interpreter lock and write disjoint rows: no atomics anywhere.

Feature matrices are float32, float64 or the 16 bits of halves (uint16) or of bfloat16 (int16). Arguments that
may be None are resolved when a kernel is compiled, so that an absent factor costs nothing. Sums run in the
order of the edges of a row, whatever the thread or the mini-batch: equal rows give equal bits.
"""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

import numpy as np

from hyrt.machine.generator import random_bits, vertex_stream
from hyrt.machine.intrinsics import prefetch, prefetch_row, value
from hyrt.machine.kernels.kept_kernels import nb

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
def ask_ahead(indptr, columns, self_rows, source_scale, flat, width, i, start, stop):
    """Ask for the rows of x that destinations soon after i need, and for the factors on them."""
    first = indptr[i] + _EDGES_AHEAD if i > start else indptr[i]
    for e in range(first, min(indptr[i + 1] + _EDGES_AHEAD, indptr[stop])):
        prefetch_row(flat, width, np.int64(columns[e]))
        if source_scale is not None:
            prefetch(source_scale, np.int64(columns[e]))
    if self_rows is not None:
        if i + _OWN_AHEAD < stop:
            prefetch_row(flat, width, np.int64(self_rows[i + _OWN_AHEAD]))


@_compile
def aggregate(
    indptr, columns, self_rows, x, row_scale, source_scale, weights, self_scale, out, sum_at, self_at, onto,
    start, stop,
):  # fmt: skip
    """Weighted sums of source rows, and the destinations' own rows beside or added to them.

    out[i, sum_at:] = row_scale[i] * sum_e weights[e] * source_scale[columns[e]] * x[columns[e]] and, with s =
    x[self_rows[i]] (x[i] where self_rows is None), out[i, self_at:] = s where self_at is not None, or
    self_scale[i] * s is added to the sum where self_scale is not None. Where `onto` is not None, all of it is
    added to what is in `out`.
    """
    width = x.shape[1]
    flat = x.reshape(x.size)
    kept = np.empty(0 if onto is None else width, out.dtype)
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        ask_ahead(indptr, columns, self_rows, source_scale, flat, width, i, start, stop)
        total = out[i, sum_at : sum_at + width] if onto is None else kept
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
        # One condition an `if`: only such branches are resolved when the kernel is compiled.
        if self_scale is not None:
            own = x[i] if self_rows is None else x[self_rows[i]]
            own_scale = self_scale[i]
            for k in range(width):
                total[k] += own_scale * value(own[k])
        if self_at is not None:
            own = x[i] if self_rows is None else x[self_rows[i]]
            beside = out[i, self_at : self_at + width]
            if onto is None:
                for k in range(width):
                    beside[k] = value(own[k])
            else:
                for k in range(width):
                    beside[k] += value(own[k])
        if onto is not None:
            there = out[i, sum_at : sum_at + width]
            for k in range(width):
                there[k] += kept[k]


@_compile
def aggregate_backward(
    t_indptr, t_rows, t_edges, num_dst, grad, row_scale, source_scale, weights, self_scale, out, sum_at,
    self_at, start, stop,
):  # fmt: skip
    """Gradient of `aggregate` with respect to x, row by row of the sources, over the transposed edges."""
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
    """Elementwise maximum of source rows; `winners` keeps each one's edge, -1 (and 0) where there is none."""
    width = x.shape[1]
    flat = x.reshape(x.size)
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        ask_ahead(indptr, columns, self_rows, None, flat, width, i, start, stop)
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
            own = x[i] if self_rows is None else x[self_rows[i]]
            beside = out[i, self_at : self_at + width]
            for k in range(width):
                beside[k] = value(own[k])


@_compile
def aggregate_max_backward(
    t_indptr, t_rows, t_edges, num_dst, grad, winners, out, sum_at, self_at, start, stop
):
    """Gradient of `aggregate_max`: each element's goes to the edge that won."""
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
    indptr, columns, self_rows, x, u_src, u_dst, slope, alpha, derivative, own_alpha, own_derivative, out,
    factor, own_factor, start, stop,
):  # fmt: skip
    """Attention-weighted sums of source rows: self loop included, softmax over a destination's edges.

    With x as [num_src, S, f], S = 1 (all heads read the same row) or S = H (each head reads its own slice):
    score[e, h] = leaky(x[j] . u_src[h] + x[i] . u_dst[h]); alpha = softmax; out[h, i] = sum_e alpha[e, h]
    x[j]. `alpha` and `own_alpha` keep the weights, `derivative` and `own_derivative` the slopes of leaky for
    backward. Where `factor` and `own_factor` are not None, they multiply the weights after the softmax.
    """
    heads, width = u_src.shape
    slices = x.shape[1]
    flat = x.reshape(x.size)
    offset = np.empty(heads, out.dtype)
    top = np.empty(heads, out.dtype)
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        ask_ahead(indptr, columns, self_rows, None, flat, slices * width, i, start, stop)
        own = x[i] if self_rows is None else x[self_rows[i]]
        for h in range(heads):
            a = own[h] if slices > 1 else own[0]
            to = out.dtype.type(0)
            at = out.dtype.type(0)
            for k in range(width):
                to += value(a[k]) * u_dst[h, k]
                at += value(a[k]) * u_src[h, k]
            offset[h] = to
            score = at + to
            own_derivative[i, h] = 1 if score > 0 else slope
            score *= own_derivative[i, h]
            own_alpha[i, h] = score
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
            weight = np.exp(own_alpha[i, h] - top[h])
            own_alpha[i, h] = weight
            total = weight
            for e in range(first, end):
                weight = np.exp(alpha[e, h] - top[h])
                alpha[e, h] = weight
                total += weight
            own_alpha[i, h] /= total
            a = own[h] if slices > 1 else own[0]
            o = out[h, i]
            weight = own_alpha[i, h]
            if own_factor is not None:
                weight *= own_factor[i, h]
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
    indptr, columns, self_rows, x, grad, alpha, derivative, own_alpha, own_derivative, u_src_grad, u_dst_grad,
    d_score, own_d_score, d_offset, factor, own_factor, start, stop,
):  # fmt: skip
    """Gradients of `attend` with respect to the scores, and this chunk's part of those of u_src and u_dst."""
    heads, width = u_src_grad.shape
    slices = x.shape[1]
    flat = x.reshape(x.size)
    for h in range(heads):
        for k in range(width):
            u_src_grad[h, k] = 0
            u_dst_grad[h, k] = 0
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        ask_ahead(indptr, columns, self_rows, None, flat, slices * width, i, start, stop)
        own = x[i] if self_rows is None else x[self_rows[i]]
        for h in range(heads):
            g = grad[h, i]
            a = own[h] if slices > 1 else own[0]
            d = grad.dtype.type(0)
            for k in range(width):
                d += g[k] * value(a[k])
            if own_factor is not None:
                d *= own_factor[i, h]
            own_d_score[i, h] = d
            mean = own_alpha[i, h] * d
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
            d = own_alpha[i, h] * (own_d_score[i, h] - mean) * own_derivative[i, h]
            own_d_score[i, h] = d
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
    t_indptr, t_rows, t_edges, num_dst, grad, alpha, own_alpha, d_score, own_d_score, d_offset, u_src, u_dst,
    out, factor, own_factor, start, stop,
):  # fmt: skip
    """Gradient of `attend` with respect to x ([num_src, S, f]), over the transposed edges."""
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
                weight = own_alpha[j, h]
                if own_factor is not None:
                    weight *= own_factor[j, h]
                score += own_d_score[j, h]
                offset = d_offset[j, h]
                for k in range(width):
                    row[k] += weight * g[k]
            for k in range(width):
                row[k] += score * u_src[h, k] + offset * u_dst[h, k]


@_compile
def drop(x, vertices, key, threshold, scale, out, start, stop):
    """Zero each element with probability threshold / 65536 and multiply the rest by `scale`.

    The mask is a function of (key, vertex, column): 16 bits a column, four columns a draw.
    """
    width = x.shape[1]
    groups = (width + 3) // 4
    draws = np.empty(groups, np.uint64)
    # The lowest 16 bits of a draw are its first column's: little-endian memory has them in order.
    columns = draws.view(np.uint16)
    least = np.uint16(threshold)
    for i in range(start, stop):
        stream = vertex_stream(key, np.uint64(vertices[i]))
        # Two loops, for each becomes vector instructions.
        for group in range(groups):
            draws[group] = random_bits(stream, np.uint64(group))
        a = x[i]
        o = out[i]
        for k in range(width):
            o[k] = value(a[k]) * scale if columns[k] >= least else 0


@_compile
def drop_sparse(indptr, columns, values, vertices, key, threshold, scale, out, start, stop):
    """`drop` on the stored values of sparse rows: the same mask as on their dense form."""
    for i in range(start, stop):
        stream = vertex_stream(key, np.uint64(vertices[i]))
        for e in range(indptr[i], indptr[i + 1]):
            k = np.uint64(columns[e])
            bits = random_bits(stream, k >> np.uint64(2))
            kept = ((bits >> (np.uint64(16) * (k & np.uint64(3)))) & np.uint64(0xFFFF)) >= threshold
            out[e] = values[e] * scale if kept else 0
