"""Elementwise maximum of source rows over a full graph, and its transpose."""

# mypy: disable-error-code="no-untyped-def,call-arg,var-annotated,unreachable"
from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.intrinsics import prefetch
from hyrt.machine.kernels.kept_kernels import nb
from hyrt.machine.workers import Workers
from hyrt.nn.whole_graph import vectors
from hyrt.nn.whole_graph.edge_ranges import run_by_edges
from hyrt.nn.whole_graph.rows import AHEAD, column_passes, flat, numbers_of_rows, sum_dtype

Array = NDArray[Any]


@cache
def _max_loop(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def largest_rows(
        indptr, columns, rows, x, x_step, out, out_step, winners, width, column, used, zero, start, stop
    ):
        line = 64 // x.itemsize
        none = vectors.filled(np.int32(-1), lanes)
        for k in range(start, stop):
            i = np.int64(k) if rows is None else np.int64(rows[k])
            first, end = np.int64(indptr[i]), np.int64(indptr[i + 1])
            # Consecutive rows prefetch each other's sources.
            final = (np.int64(indptr[stop]) if rows is None else end) - 1
            best = vectors.filled(zero, lanes)
            winner = none
            for e in range(first, end):
                later = np.int64(columns[min(e + AHEAD, final)])
                for s in range(0, lanes if used is None else used, line):
                    prefetch(x, later * x_step + column + s)
                row = vectors.load(x, np.int64(columns[e]) * x_step + column, lanes, used)
                number = vectors.filled(np.int32(columns[e]), lanes)
                if e == first:
                    best = row
                    winner = number
                else:
                    winner = vectors.where_above(row, best, number, winner)
                    best = vectors.where_above(row, best, row, best)
            vectors.store(out, k * out_step + column, best, used)
            if winners is not None:
                vectors.store(winners, k * width + column, winner, used)

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
        zeros = vectors.filled(zero, lanes)
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
                # Of parallel edges, only the first is recorded as the argmax.
                if e > first and columns[e - 1] == columns[e]:
                    continue
                if positions is not None:
                    i = np.int64(positions[i])
                if positions is not None:
                    if i < 0:
                        continue
                g = vectors.load(grad, i * grad_step + column, lanes, used)
                winner = vectors.load(winners, i * width + column, lanes, used)
                total = vectors.add(total, vectors.where_equal(winner, np.int32(j), g, zeros))
            vectors.store(out, j * out_step + column, total, used)

    return run_backward


def largest_into(
    indptr: Array,
    columns: Array,
    x: Array,
    out: Array,
    winners: Array | None = None,
    *,
    rows: Array | None = None,
    workers: Workers | None = None,
) -> None:
    """Compute the maximum of each column over each row's source rows; zero without edges.

    Parameters
    ----------
    indptr, columns
        [V + 1] and [E] int32 or int64: CSR over the edges, of fewer than 2^31 vertices.
    x
        [V, f] float32 or float64, or 16 bits: float16 as uint16, bfloat16 as int16.
    out
        [V, f], or one row for each of `rows`, with one of these dtypes.
    winners
        [V or m, f] C-contiguous int32: receives the argmax sources, the first source of a tie, and -1 for
        rows without edges.
    rows
        [m] integers: the rows to compute; all by default.
    workers
        The team of threads; the calling thread's by default.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not match.
    """
    elements, x_step = flat("x", x)
    results, out_step = flat("out", out)
    vertices = len(indptr) - 1
    shape = (vertices if rows is None else len(rows), x.shape[1])
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, but the result has {shape}")
    if len(x) != vertices:
        raise ValueError(f"x has {len(x)} rows for {vertices} vertices: give one each")
    argmax = None if winners is None else _winners(winners, shape)
    zero = sum_dtype(x.dtype).type(0)
    chosen = numbers_of_rows(rows, columns)

    def work(start: int, stop: int) -> None:
        for column, lanes, used in column_passes(x.shape[1]):
            _max_loop(lanes)(
                indptr, columns, chosen, elements, x_step, results, out_step, argmax, x.shape[1], column,
                used, zero, start, stop,
            )  # fmt: skip

    run_by_edges(work, indptr, chosen, workers)


def largest_backward_into(
    t_indptr: Array,
    t_columns: Array,
    grad: Array,
    winners: Array,
    out: Array,
    *,
    positions: Array | None = None,
    workers: Workers | None = None,
) -> None:
    """Compute the gradient of `largest_into` with respect to x: each element's goes to its argmax source.

    Parameters
    ----------
    t_indptr, t_columns
        The transpose of the topology, with sorted rows.
    grad
        [m, f], one row per computed row.
    winners
        The argmax sources that `largest_into` wrote.
    out
        [V, f]: receives the gradient.
    positions
        [V] integers, the position of each vertex in the computed rows, negative for other vertices; all by
        default.
    workers
        The team of threads; the calling thread's by default.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not match.
    """
    g, grad_step = flat("grad", grad)
    results, out_step = flat("out", out)
    vertices, width = len(t_indptr) - 1, grad.shape[1]
    if out.shape != (vertices, width):
        raise ValueError(f"out has shape {out.shape}, but the gradient has {(vertices, width)}")
    if positions is None and len(grad) != vertices:
        raise ValueError(f"grad has {len(grad)} rows for {vertices} vertices: give one each, or positions")
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
            f"winners has shape {winners.shape} and is {winners.dtype}: give a C-contiguous array of shape "
            f"{shape} and int32"
        )
    return winners.reshape(-1)
