"""The elementwise maximum of source rows over a whole graph, and its transpose."""

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
def _largest(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def largest_rows(
        indptr, columns, rows, x, x_step, out, out_step, winners, width, at, used, zero, start, stop
    ):
        line = 64 // x.itemsize
        nobody = vectors.filled(np.int32(-1), lanes)
        for k in range(start, stop):
            i = np.int64(k) if rows is None else np.int64(rows[k])
            first, end = np.int64(indptr[i]), np.int64(indptr[i + 1])
            # Rows that follow each other ask for each other's sources.
            final = (np.int64(indptr[stop]) if rows is None else end) - 1
            best = vectors.filled(zero, lanes)
            winner = nobody
            for e in range(first, end):
                later = np.int64(columns[min(e + AHEAD, final)])
                for s in range(0, lanes if used is None else used, line):
                    prefetch(x, later * x_step + at + s)
                row = vectors.load(x, np.int64(columns[e]) * x_step + at, lanes, used)
                number = vectors.filled(np.int32(columns[e]), lanes)
                if e == first:
                    best = row
                    winner = number
                else:
                    winner = vectors.where_above(row, best, number, winner)
                    best = vectors.where_above(row, best, row, best)
            vectors.store(out, k * out_step + at, best, used)
            if winners is not None:
                vectors.store(winners, k * width + at, winner, used)

    return largest_rows


@cache
def _to_winners(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def turn_back(
        indptr,
        columns,
        positions,
        grad,
        grad_step,
        winners,
        width,
        out,
        out_step,
        at,
        used,
        zero,
        start,
        stop,
    ):
        line = 64 // grad.itemsize
        nothing = vectors.filled(zero, lanes)
        final = np.int64(indptr[stop]) - 1
        for j in range(start, stop):
            total = nothing
            first = np.int64(indptr[j])
            for e in range(first, np.int64(indptr[j + 1])):
                later = np.int64(columns[min(e + AHEAD, final)])
                if positions is not None:
                    later = np.int64(positions[later])
                for s in range(0, lanes if used is None else used, line):
                    prefetch(grad, later * grad_step + at + s)
                    prefetch(winners, later * width + at + s)
                i = np.int64(columns[e])
                # Of several edges between two vertices one has won.
                if e > first and columns[e - 1] == columns[e]:
                    continue
                if positions is not None:
                    i = np.int64(positions[i])
                if positions is not None:
                    if i < 0:
                        continue
                g = vectors.load(grad, i * grad_step + at, lanes, used)
                winner = vectors.load(winners, i * width + at, lanes, used)
                total = vectors.add(total, vectors.where_equal(winner, np.int32(j), g, nothing))
            vectors.store(out, j * out_step + at, total, used)

    return turn_back


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
    """The largest of each column over the source rows of each row; zero without edges.

    Parameters
    ----------
    indptr, columns
        [V + 1] and [E] int32 or int64: CSR over the edges, of fewer than 2^31 vertices.
    x
        [V, f] float32 or float64, or 16 bits: float16 as uint16, bfloat16 as int16.
    out
        [V, f], or one row for each of `rows`; of the same choice of dtypes.
    winners
        [V or m, f] C-contiguous int32: receives which source's value it is, the first one's of a tie, and -1
        where there is none.
    rows
        [m] integers: the rows to compute; all by default.
    workers
        The team of threads; the calling thread's by default.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not go together.
    """
    elements, x_step = flat("x", x)
    results, out_step = flat("out", out)
    vertices = len(indptr) - 1
    wanted = (vertices if rows is None else len(rows), x.shape[1])
    if out.shape != wanted:
        raise ValueError(f"out has shape {out.shape}, but the result has {wanted}")
    if len(x) != vertices:
        raise ValueError(f"x has {len(x)} rows for {vertices} vertices: give one each")
    kept = None if winners is None else _winners(winners, wanted)
    zero = sum_dtype(x.dtype).type(0)
    chosen = numbers_of_rows(rows, columns)

    def work(start: int, stop: int) -> None:
        for at, lanes, used in column_passes(x.shape[1]):
            _largest(lanes)(
                indptr, columns, chosen, elements, x_step, results, out_step, kept, x.shape[1], at, used,
                zero, start, stop,
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
    """The gradient of `largest_into` with respect to x: each element's goes to the source that won.

    Parameters
    ----------
    t_indptr, t_columns
        The transpose of the topology, with sorted rows.
    grad
        [m, f], one row for each row computed.
    winners
        What `largest_into` left.
    out
        [V, f]: receives the gradient.
    positions
        [V] integers, where each vertex is among the rows computed, negative for others; all by default.
    workers
        The team of threads; the calling thread's by default.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not go together.
    """
    g, grad_step = flat("grad", grad)
    results, out_step = flat("out", out)
    vertices, width = len(t_indptr) - 1, grad.shape[1]
    if out.shape != (vertices, width):
        raise ValueError(f"out has shape {out.shape}, but the gradient has {(vertices, width)}")
    if positions is None and len(grad) != vertices:
        raise ValueError(f"grad has {len(grad)} rows for {vertices} vertices: give one each, or positions")
    kept = _winners(winners, grad.shape)
    zero = sum_dtype(grad.dtype).type(0)

    def work(start: int, stop: int) -> None:
        for at, lanes, used in column_passes(width):
            _to_winners(lanes)(
                t_indptr, t_columns, positions, g, grad_step, kept, width, results, out_step, at, used, zero,
                start, stop,
            )  # fmt: skip

    run_by_edges(work, t_indptr, None, workers)


def _winners(winners: Array, shape: tuple[int, ...]) -> Array:
    if winners.shape != shape or winners.dtype != np.int32 or not winners.flags.c_contiguous:
        raise ValueError(
            f"winners has shape {winners.shape} and is {winners.dtype}: give a C-contiguous array of shape "
            f"{shape} and int32"
        )
    return winners.reshape(-1)
