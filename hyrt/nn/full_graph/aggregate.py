"""Sum and max aggregation over a full graph, and their transposes: gSpMMv and gSpMMve of GraphPy (6.1)."""

# mypy: disable-error-code="no-untyped-def,call-arg,var-annotated,unreachable"

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.nn.full_graph import simd
from hyrt.nn.full_graph.traversal import (
    AHEAD,
    cast_row_ids,
    column_passes,
    flatten_rows,
    prefetch_edges,
    run_by_edges,
    sum_dtype,
)
from hyrt.runtime.intrinsics import prefetch
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.workers import Workers

Array = NDArray[Any]


@cache
def _kernel(lanes: int) -> Any:
    """Compile the loop for passes of `lanes` columns.

    Numba removes arguments that are None. For absent row factors, empty arrays are passed instead: one test
    per row costs nothing, and fewer variants of the loop are compiled.
    """

    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def sum_rows(
        indptr, columns, rows, positions, x, x_step, row_scale, source_scale, self_scale, weights, heads,
        head, edges, out, out_step, column, used, accumulate, zero, start, stop,
    ):  # fmt: skip
        line = 64 // x.itemsize
        zeros = simd.filled(zero, lanes)
        for k in range(start, stop):
            i = np.int64(k) if rows is None else np.int64(rows[k])
            # If rows are consecutive, prefetch beyond the end of a row: the edges of the next row follow.
            final = (indptr[stop] if rows is None else indptr[i + 1]) - 1
            if rows is not None:
                prefetch_edges(indptr, columns, rows, k, stop)
                following = np.int64(rows[min(k + 1, stop - 1)])
                begin = indptr[following]
                for e in range(begin, min(begin + AHEAD, indptr[following + 1])):
                    later = np.int64(columns[e])
                    if positions is not None:
                        later = np.int64(positions[later])
                    for s in range(0, lanes if used is None else used, line):
                        prefetch(x, later * x_step + column + s)
            total = zeros
            for e in range(indptr[i], indptr[i + 1]):
                if positions is not None:
                    prefetch(positions, np.int64(columns[min(e + 2 * AHEAD, final)]))
                later = np.int64(columns[min(e + AHEAD, final)])
                if source_scale is not None:
                    prefetch(source_scale, later)
                if positions is not None:
                    later = np.int64(positions[later])
                for s in range(0, lanes if used is None else used, line):
                    prefetch(x, later * x_step + column + s)
                c = np.int64(columns[e])
                p = c
                if positions is not None:
                    p = np.int64(positions[c])
                if positions is not None:
                    if p < 0:
                        continue
                row = simd.load(x, p * x_step + column, lanes, used)
                if source_scale is not None:
                    row = simd.scaled(row, source_scale[c])
                if weights is not None:
                    w = np.int64(e) if edges is None else np.int64(edges[e])
                    row = simd.scaled(row, weights[w * heads + head])
                total = simd.add(total, row)
            if row_scale.size:
                total = simd.scaled(total, row_scale[i])
            if self_scale.size:
                p = i if positions is None else np.int64(positions[i])
                if p >= 0:
                    row = simd.load(x, p * x_step + column, lanes, used)
                    total = simd.add(total, simd.scaled(row, self_scale[i]))
            target = np.int64(k) * out_step + column
            if accumulate:
                total = simd.add(total, simd.load(out, target, lanes, used))
            simd.store(out, target, total, used)

    return sum_rows


def spmm_into(
    indptr: Array,
    columns: Array,
    x: Array,
    out: Array,
    *,
    row_scale: Array | None = None,
    source_scale: Array | None = None,
    self_scale: Array | None = None,
    weights: Array | None = None,
    edge_ids: Array | None = None,
    rows: Array | None = None,
    positions: Array | None = None,
    accumulate: bool = False,
    workers: Workers | None = None,
) -> None:
    """Sum the source rows of each row's edges, with optional scales and edge weights.

    out[k] = row_scale[i] * sum of weights[e] * source_scale[c] * x[p(c)] over the edges e from c into i, +
    self_scale[i] * x[p(i)]; Here i = rows[k] (i = k without `rows`) and p(c) = positions[c] (p(c) = c without
    `positions`). Edges from sources with a negative position are skipped. The gradient with respect to x is
    the same function over the transposed topology, with row_scale and source_scale exchanged.

    `indptr` [V + 1] and `columns` [E] are int32 or int64. `x` [n, f] and `out` [V, f] (one row per element of
    `rows`, if given) are float32, float64, float16 bits as uint16, or bfloat16 bits as int16; sums are
    float32 unless x is float64. They must not overlap. There may be gaps between rows, and rows that begin at
    cache lines, as in torch tensors, are faster.

    Scales are [V]; without `self_scale` there is no self path. `weights` are [E], or [E, H] with one factor
    for each of H equal slices of the columns; `edge_ids` has the index of each edge's weight (default: edge
    order). If `accumulate`, the sums are added to `out`. Raises ValueError if shapes or dtypes do not match.
    """
    # Both integer types use one compiled loop. Converting |V| integers is cheap compared with the sums.
    indptr = indptr.astype(np.int64, copy=False)
    elements, x_step = flatten_rows("x", x)
    results, out_step = flatten_rows("out", out)
    shape = (len(indptr) - 1 if rows is None else len(rows), x.shape[1])
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, expected {shape}")
    heads = 1 if weights is None or weights.ndim == 1 else weights.shape[1]
    if x.shape[1] % heads:
        raise ValueError(f"x has {x.shape[1]} columns, which is not a multiple of the weights' {heads} heads")
    if weights is not None and weights.dtype not in (np.float32, np.float64):
        raise ValueError(f"weights has dtype {weights.dtype}: use float32 or float64")
    factors = None if weights is None else np.ascontiguousarray(weights).reshape(-1)
    zero = sum_dtype(x.dtype).type(0)
    none = np.empty(0, zero.dtype)
    chosen = cast_row_ids(rows, columns)
    row_factors, self_factors = (none if scale is None else scale for scale in (row_scale, self_scale))
    width = x.shape[1] // heads
    passes = [
        (h, h * width + column, lanes, used)
        for h in range(heads)
        for column, lanes, used in column_passes(width)
    ]

    def work(start: int, stop: int) -> None:
        for head, column, lanes, used in passes:
            _kernel(lanes)(
                indptr, columns, chosen, positions, elements, x_step, row_factors, source_scale, self_factors,
                factors, heads, head, edge_ids, results, out_step, column, used, accumulate, zero, start,
                stop,
            )  # fmt: skip

    def cut(k: int, starts: Array) -> _SplitRowSum:
        i = k if chosen is None else int(chosen[k])
        return _SplitRowSum(
            starts=starts, columns=columns, x=x, out=out[k : k + 1], row_scale=_slice_scale(row_scale, i),
            source_scale=source_scale, self_scale=_slice_scale(self_scale, i),
            self_index=i if positions is None else int(positions[i]), weights=weights, edge_ids=edge_ids,
            positions=positions, accumulate=accumulate,
            sums=np.zeros((len(starts), x.shape[1]), zero.dtype),
        )  # fmt: skip

    run_by_edges(work, indptr, chosen, workers, cut, width=x.shape[1])


def _slice_scale(scale: Array | None, i: int) -> Array | None:
    return None if scale is None else scale[i : i + 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _SplitRowSum:
    """Row with very many edges. Its pieces are summed like separate rows, then added in order."""

    starts: Array
    columns: Array
    x: Array
    out: Array
    row_scale: Array | None
    source_scale: Array | None
    self_scale: Array | None
    self_index: int
    """Index of the row of x that belongs to this row, negative if there is none."""
    weights: Array | None
    edge_ids: Array | None
    positions: Array | None
    accumulate: bool
    sums: Array
    """The row's scaled own x, followed by the sum of each piece, [pieces + 1, f]."""

    __repr__ = short_repr

    def compute_piece(self, number: int) -> None:
        spmm_into(
            self.starts[number : number + 2],
            self.columns,
            self.x,
            self.sums[number + 1 : number + 2],
            source_scale=self.source_scale,
            weights=self.weights,
            edge_ids=self.edge_ids,
            positions=self.positions,
        )

    def finish(self) -> None:
        if self.self_scale is not None and self.self_index >= 0:
            no_edges = np.zeros(2, self.starts.dtype)
            self_row = self.x[self.self_index : self.self_index + 1]
            spmm_into(no_edges, self.columns, self_row, self.sums[:1], self_scale=self.self_scale)
        pieces = len(self.starts) - 1
        spmm_into(
            np.array([0, pieces], self.starts.dtype),
            np.arange(1, pieces + 1, dtype=self.columns.dtype),
            self.sums,
            self.out,
            row_scale=self.row_scale,
            self_scale=None if self.self_scale is None else np.ones_like(self.self_scale),
            accumulate=self.accumulate,
        )


@cache
def _max_loop(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def largest_rows(
        indptr, columns, rows, x, x_step, out, out_step, winners, width, column, used, zero, start, stop
    ):
        line = 64 // x.itemsize
        none = simd.filled(np.int32(-1), lanes)
        for k in range(start, stop):
            i = np.int64(k) if rows is None else np.int64(rows[k])
            first, end = np.int64(indptr[i]), np.int64(indptr[i + 1])
            # If rows are consecutive, prefetch beyond the end of a row: the edges of the next row follow.
            final = (np.int64(indptr[stop]) if rows is None else end) - 1
            best = simd.filled(zero, lanes)
            winner = none
            for e in range(first, end):
                later = np.int64(columns[min(e + AHEAD, final)])
                for s in range(0, lanes if used is None else used, line):
                    prefetch(x, later * x_step + column + s)
                row = simd.load(x, np.int64(columns[e]) * x_step + column, lanes, used)
                number = simd.filled(np.int32(columns[e]), lanes)
                if e == first:
                    best = row
                    winner = number
                else:
                    winner = simd.where_above(row, best, number, winner)
                    best = simd.where_above(row, best, row, best)
            simd.store(out, k * out_step + column, best, used)
            if winners is not None:
                simd.store(winners, k * width + column, winner, used)

    return largest_rows


@cache
def _winner_loop(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def run_backward(
        indptr,
        columns,
        positions,
        grad,
        grad_step,
        winners,
        width,
        out,
        out_step,
        column,
        used,
        zero,
        start,
        stop,
    ):
        line = 64 // grad.itemsize
        zeros = simd.filled(zero, lanes)
        final = np.int64(indptr[stop]) - 1
        for j in range(start, stop):
            total = zeros
            first = np.int64(indptr[j])
            for e in range(first, np.int64(indptr[j + 1])):
                later = np.int64(columns[min(e + AHEAD, final)])
                if positions is not None:
                    later = np.int64(positions[later])
                for s in range(0, lanes if used is None else used, line):
                    prefetch(grad, later * grad_step + column + s)
                    prefetch(winners, later * width + column + s)
                i = np.int64(columns[e])
                # If there are parallel edges, the first one is recorded as the argmax.
                if e > first and columns[e - 1] == columns[e]:
                    continue
                if positions is not None:
                    i = np.int64(positions[i])
                if positions is not None:
                    if i < 0:
                        continue
                g = simd.load(grad, i * grad_step + column, lanes, used)
                winner = simd.load(winners, i * width + column, lanes, used)
                total = simd.add(total, simd.where_equal(winner, np.int32(j), g, zeros))
            simd.store(out, j * out_step + column, total, used)

    return run_backward


def max_aggregate_into(
    indptr: Array,
    columns: Array,
    x: Array,
    out: Array,
    winners: Array | None = None,
    *,
    rows: Array | None = None,
    workers: Workers | None = None,
) -> None:
    """Compute the column-wise maximum of each row's source rows; zero for rows without edges.

    `indptr` and `columns` are int32 or int64, for fewer than 2^31 vertices. `x` [V, f] and `out` [V, f], or
    one row per element of `rows`, have the dtypes of `spmm_into`. `winners`, C-contiguous int32 with the
    shape of `out`, receives the argmax sources: the first one of a tie, and -1 for rows without edges. Raises
    ValueError if shapes or dtypes do not match.
    """
    elements, x_step = flatten_rows("x", x)
    results, out_step = flatten_rows("out", out)
    vertices = len(indptr) - 1
    shape = (vertices if rows is None else len(rows), x.shape[1])
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, expected {shape}")
    if len(x) != vertices:
        raise ValueError(f"x has {len(x)} rows for {vertices} vertices: pass one row per vertex")
    argmax = None if winners is None else _winners(winners, shape)
    zero = sum_dtype(x.dtype).type(0)
    chosen = cast_row_ids(rows, columns)

    def work(start: int, stop: int) -> None:
        for column, lanes, used in column_passes(x.shape[1]):
            _max_loop(lanes)(
                indptr, columns, chosen, elements, x_step, results, out_step, argmax, x.shape[1], column,
                used, zero, start, stop,
            )  # fmt: skip

    run_by_edges(work, indptr, chosen, workers)


def max_aggregate_backward_into(
    t_indptr: Array,
    t_columns: Array,
    grad: Array,
    winners: Array,
    out: Array,
    *,
    positions: Array | None = None,
    workers: Workers | None = None,
) -> None:
    """Compute the gradient `out` [V, f] of `max_aggregate_into` with respect to x.

    The gradient of each element is added to its argmax source in `winners`. `t_indptr` and `t_columns` are
    the transposed topology with sorted rows. `grad` [m, f] has one row per row that was computed, and
    `positions` [V] has the index of each vertex among these rows, negative for other vertices. Raises
    ValueError if shapes or dtypes do not match.
    """
    g, grad_step = flatten_rows("grad", grad)
    results, out_step = flatten_rows("out", out)
    vertices, width = len(t_indptr) - 1, grad.shape[1]
    if out.shape != (vertices, width):
        raise ValueError(f"out has shape {out.shape}, expected {(vertices, width)}")
    if positions is None and len(grad) != vertices:
        raise ValueError(
            f"grad has {len(grad)} rows for {vertices} vertices: pass one row per vertex, or positions"
        )
    argmax = _winners(winners, grad.shape)
    zero = sum_dtype(grad.dtype).type(0)

    def work(start: int, stop: int) -> None:
        for column, lanes, used in column_passes(width):
            _winner_loop(lanes)(
                t_indptr, t_columns, positions, g, grad_step, argmax, width, results, out_step, column, used,
                zero, start, stop,
            )  # fmt: skip

    run_by_edges(work, t_indptr, None, workers)


def _winners(winners: Array, shape: tuple[int, ...]) -> Array:
    if winners.shape != shape or winners.dtype != np.int32 or not winners.flags.c_contiguous:
        raise ValueError(
            f"winners has shape {winners.shape} and dtype {winners.dtype}: pass a C-contiguous int32 array "
            f"of shape {shape}"
        )
    return winners.reshape(-1)
