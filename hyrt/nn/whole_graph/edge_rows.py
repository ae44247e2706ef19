"""Edge tensors of a whole graph by row: sums, maxima and softmax (gSpMMe), and their gradients."""

# mypy: disable-error-code="no-untyped-def,call-arg,var-annotated,unreachable"
from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.kernels.kept_kernels import nb
from hyrt.machine.workers import Workers
from hyrt.nn.whole_graph import vectors
from hyrt.nn.whole_graph.edge_ranges import run_by_edges
from hyrt.nn.whole_graph.rows import column_passes, elements, sum_dtype
from hyrt.quantities import one_line

Array = NDArray[Any]


@cache
def _reduce(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def reduce_rows(indptr, edges, values, width, largest, out, winners, at, used, zero, start, stop):
        for i in range(start, stop):
            total = vectors.filled(zero, lanes)
            winner = vectors.filled(np.int64(-1), lanes)
            first = np.int64(indptr[i])
            for t in range(first, np.int64(indptr[i + 1])):
                e = np.int64(t) if edges is None else np.int64(edges[t])
                row = vectors.load(values, e * width + at, lanes, used)
                if largest:
                    number = vectors.filled(e, lanes)
                    if t == first:
                        total = row
                        winner = number
                    else:
                        winner = vectors.where_above(row, total, number, winner)
                        total = vectors.where_above(row, total, row, total)
                else:
                    total = vectors.add(total, row)
            vectors.store(out, i * width + at, total, used)
            if winners is not None:
                vectors.store(winners, i * width + at, winner, used)

    return reduce_rows


@cache
def _spread(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def spread_rows(indptr, rows, winners, width, out, at, used, zero, start, stop):
        nothing = vectors.filled(zero, lanes)
        for i in range(start, stop):
            row = vectors.load(rows, i * width + at, lanes, used)
            if winners is not None:
                winner = vectors.load(winners, i * width + at, lanes, used)
            for e in range(np.int64(indptr[i]), np.int64(indptr[i + 1])):
                if winners is None:
                    vectors.store(out, e * width + at, row, used)
                else:
                    mine = vectors.where_equal(winner, e, row, nothing)
                    vectors.store(out, e * width + at, mine, used)

    return spread_rows


@cache
def _softmax(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def softmax_rows(indptr, scores, width, out, at, used, start, stop):
        lowest = vectors.filled(scores.dtype.type(-np.inf), lanes)
        nothing = vectors.filled(scores.dtype.type(0), lanes)
        for i in range(start, stop):
            first, end = np.int64(indptr[i]), np.int64(indptr[i + 1])
            top, total = lowest, nothing
            for e in range(first, end):
                row = vectors.load(scores, e * width + at, lanes, used)
                top = vectors.where_above(row, top, row, top)
            for e in range(first, end):
                row = vectors.exp(vectors.subtract(vectors.load(scores, e * width + at, lanes, used), top))
                total = vectors.add(total, row)
                vectors.store(out, e * width + at, row, used)
            inverse = vectors.inverse_or_zero(total)
            for e in range(first, end):
                row = vectors.load(out, e * width + at, lanes, used)
                vectors.store(out, e * width + at, vectors.multiply(row, inverse), used)

    return softmax_rows


@cache
def _softmax_backward(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def softmax_back(indptr, weights, grad, width, out, at, used, start, stop):
        nothing = vectors.filled(weights.dtype.type(0), lanes)
        for i in range(start, stop):
            first, end = np.int64(indptr[i]), np.int64(indptr[i + 1])
            mean = nothing
            for e in range(first, end):
                weight = vectors.load(weights, e * width + at, lanes, used)
                g = vectors.load(grad, e * width + at, lanes, used)
                mean = vectors.add(mean, vectors.multiply(weight, g))
            for e in range(first, end):
                weight = vectors.load(weights, e * width + at, lanes, used)
                g = vectors.load(grad, e * width + at, lanes, used)
                g = vectors.multiply(weight, vectors.subtract(g, mean))
                vectors.store(out, e * width + at, g, used)

    return softmax_back


def reduce_edges_into(
    indptr: Array,
    values: Array,
    out: Array,
    *,
    largest: bool = False,
    edge_ids: Array | None = None,
    winners: Array | None = None,
    workers: Workers | None = None,
) -> None:
    """The sums, or the largest, of each row's edges, column by column; zero without edges.

    Parameters
    ----------
    indptr
        [V + 1] int32 or int64, where each row's edges start.
    values
        [E, f] float32 or float64, or 16 bits.
    out
        [V, f] of the same choice of dtypes.
    largest
        Take the largest instead of the sum.
    edge_ids
        [E] integers: which of the values each edge has; consecutive by default.
    winners
        [V, f] C-contiguous int64: receives which edge's value the largest is, -1 where there is none.
    workers
        The team of threads; the calling thread's by default.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not go together.
    """
    if values.ndim != 2:
        raise ValueError(f"values has shape {values.shape}: give [edges, columns]")
    number, width = int(indptr[-1]), values.shape[1]
    given = elements("values", values, (number, width))
    results = elements("out", out, (len(indptr) - 1, width))
    kept = None if winners is None else winners.reshape(-1)
    zero = sum_dtype(values.dtype).type(0)

    def work(start: int, stop: int) -> None:
        for at, lanes, used in column_passes(width):
            _reduce(lanes)(
                indptr, edge_ids, given, width, largest, results, kept, at, used, zero, start, stop
            )

    def cut(k: int, starts: Array) -> _CutReduction:
        one = slice(k, k + 1)
        shape = (len(starts) - 1, width)
        return _CutReduction(
            starts=starts, edge_ids=edge_ids, values=given, out=out[one], largest=largest,
            winners=None if winners is None else winners[one], parts=np.empty(shape, zero.dtype),
            part_winners=None if winners is None else np.empty(shape, np.int64),
        )  # fmt: skip

    run_by_edges(work, indptr, None, workers, cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CutReduction:
    """A row of very many edges: its pieces are reduced as rows of their own, and those to one."""

    starts: Array
    edge_ids: Array | None
    values: Array
    """The elements of all edges' values."""
    out: Array
    largest: bool
    winners: Array | None
    parts: Array
    """[pieces, f]."""
    part_winners: Array | None

    __repr__ = one_line

    def piece(self, number: int) -> None:
        width, zero = self.parts.shape[1], self.parts.dtype.type(0)
        winners = None if self.part_winners is None else self.part_winners[number]
        for at, lanes, used in column_passes(width):
            _reduce(lanes)(
                self.starts[number : number + 2], self.edge_ids, self.values, width, self.largest,
                self.parts[number], winners, at, used, zero, 0, 1,
            )  # fmt: skip

    def finish(self) -> None:
        pieces = np.array([0, len(self.parts)], self.starts.dtype)
        reduce_edges_into(pieces, self.parts, self.out, largest=self.largest, winners=self.winners)
        if self.winners is not None and self.part_winners is not None:
            np.copyto(self.winners, np.take_along_axis(self.part_winners, self.winners, 0))


def spread_into(
    indptr: Array,
    rows: Array,
    out: Array,
    *,
    winners: Array | None = None,
    workers: Workers | None = None,
) -> None:
    """Give each row's numbers to all of its edges, or each number to the edge that won it.

    It is the gradient of `reduce_edges_into` with respect to the values.

    Parameters
    ----------
    indptr
        [V + 1] int32 or int64, where each row's edges start.
    rows
        [V, f] float32 or float64, or 16 bits.
    out
        [E, f] of the same choice of dtypes.
    winners
        [V, f] C-contiguous int64: the edge that each number belongs to; zeros go to all others.
    workers
        The team of threads; the calling thread's by default.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not go together.
    """
    if rows.ndim != 2:
        raise ValueError(f"rows has shape {rows.shape}: give [vertices, columns]")
    width = rows.shape[1]
    given = elements("rows", rows, (len(indptr) - 1, width))
    results = elements("out", out, (int(indptr[-1]), width))
    kept = None if winners is None else winners.reshape(-1)
    zero = sum_dtype(rows.dtype).type(0)

    def work(start: int, stop: int) -> None:
        for at, lanes, used in column_passes(width):
            _spread(lanes)(indptr, given, kept, width, results, at, used, zero, start, stop)

    run_by_edges(work, indptr, None, workers)


def softmax_edges_into(indptr: Array, scores: Array, out: Array, *, workers: Workers | None = None) -> None:
    """The softmax of each row's edges, column by column.

    Parameters
    ----------
    indptr
        [V + 1] int32 or int64, where each row's edges start.
    scores, out
        [E, H] float32 or float64, both alike; they may be the same array.
    workers
        The team of threads; the calling thread's by default.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not go together.
    """
    given, results, width = _edge_rows(indptr, scores=scores, out=out)

    def work(start: int, stop: int) -> None:
        for at, lanes, used in column_passes(width):
            _softmax(lanes)(indptr, given, width, results, at, used, start, stop)

    run_by_edges(work, indptr, None, workers)


def softmax_edges_backward_into(
    indptr: Array, weights: Array, grad: Array, out: Array, *, workers: Workers | None = None
) -> None:
    """The gradient of `softmax_edges_into` with respect to the scores.

    Parameters
    ----------
    indptr
        [V + 1] int32 or int64, where each row's edges start.
    weights, grad, out
        [E, H] float32 or float64, all alike: the softmax, its gradient, and what receives that of the
        scores, which may be one of the two arrays.
    workers
        The team of threads; the calling thread's by default.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not go together.
    """
    given, along, results, width = _edge_rows(indptr, weights=weights, grad=grad, out=out)

    def work(start: int, stop: int) -> None:
        for at, lanes, used in column_passes(width):
            _softmax_backward(lanes)(indptr, given, along, width, results, at, used, start, stop)

    run_by_edges(work, indptr, None, workers)


def _edge_rows(indptr: Array, **arrays: Array) -> tuple[Any, ...]:
    first = next(iter(arrays.values()))
    for what, x in arrays.items():
        if x.ndim != 2 or x.dtype not in (np.float32, np.float64) or x.dtype != first.dtype:
            raise ValueError(
                f"{what} has shape {x.shape} and is {x.dtype}: give [edges, columns], all float32 or all "
                "float64"
            )
    shape = (int(indptr[-1]), first.shape[1])
    return (*(elements(what, x, shape) for what, x in arrays.items()), shape[1])
