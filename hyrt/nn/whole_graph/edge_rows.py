"""Row-wise operators on a full graph's edge tensors: sums, maxima, softmax (gSpMMe), and their gradients."""

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
    def reduce_rows(indptr, edges, values, width, largest, out, winners, column, used, zero, start, stop):
        for i in range(start, stop):
            total = vectors.filled(zero, lanes)
            winner = vectors.filled(np.int64(-1), lanes)
            first = np.int64(indptr[i])
            for t in range(first, np.int64(indptr[i + 1])):
                e = np.int64(t) if edges is None else np.int64(edges[t])
                row = vectors.load(values, e * width + column, lanes, used)
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
            vectors.store(out, i * width + column, total, used)
            if winners is not None:
                vectors.store(winners, i * width + column, winner, used)

    return reduce_rows


@cache
def _spread(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def spread_rows(indptr, rows, winners, width, out, column, used, zero, start, stop):
        zeros = vectors.filled(zero, lanes)
        for i in range(start, stop):
            row = vectors.load(rows, i * width + column, lanes, used)
            if winners is not None:
                winner = vectors.load(winners, i * width + column, lanes, used)
            for e in range(np.int64(indptr[i]), np.int64(indptr[i + 1])):
                if winners is None:
                    vectors.store(out, e * width + column, row, used)
                else:
                    won = vectors.where_equal(winner, e, row, zeros)
                    vectors.store(out, e * width + column, won, used)

    return spread_rows


@cache
def _softmax(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def softmax_rows(indptr, scores, width, out, column, used, start, stop):
        lowest = vectors.filled(scores.dtype.type(-np.inf), lanes)
        zeros = vectors.filled(scores.dtype.type(0), lanes)
        for i in range(start, stop):
            first, end = np.int64(indptr[i]), np.int64(indptr[i + 1])
            top, total = lowest, zeros
            for e in range(first, end):
                row = vectors.load(scores, e * width + column, lanes, used)
                top = vectors.where_above(row, top, row, top)
            for e in range(first, end):
                row = vectors.exp(
                    vectors.subtract(vectors.load(scores, e * width + column, lanes, used), top)
                )
                total = vectors.add(total, row)
                vectors.store(out, e * width + column, row, used)
            inverse = vectors.inverse_or_zero(total)
            for e in range(first, end):
                row = vectors.load(out, e * width + column, lanes, used)
                vectors.store(out, e * width + column, vectors.multiply(row, inverse), used)

    return softmax_rows


@cache
def _softmax_backward(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def softmax_backward(indptr, weights, grad, width, out, column, used, start, stop):
        zeros = vectors.filled(weights.dtype.type(0), lanes)
        for i in range(start, stop):
            first, end = np.int64(indptr[i]), np.int64(indptr[i + 1])
            mean = zeros
            for e in range(first, end):
                weight = vectors.load(weights, e * width + column, lanes, used)
                g = vectors.load(grad, e * width + column, lanes, used)
                mean = vectors.add(mean, vectors.multiply(weight, g))
            for e in range(first, end):
                weight = vectors.load(weights, e * width + column, lanes, used)
                g = vectors.load(grad, e * width + column, lanes, used)
                g = vectors.multiply(weight, vectors.subtract(g, mean))
                vectors.store(out, e * width + column, g, used)

    return softmax_backward


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
    """Reduce the values of each row's edges to their sum or maximum, column by column; zero without edges.

    Parameters
    ----------
    indptr
        [V + 1] int32 or int64, the first edge of each row.
    values
        [E, f] float32 or float64, or 16 bits.
    out
        [V, f] with one of these dtypes.
    largest
        Compute the maximum instead of the sum.
    edge_ids
        [E] integers: the index of each edge's row in `values`; consecutive by default.
    winners
        [V, f] C-contiguous int64: receives the argmax edge ids, -1 for rows without edges.
    workers
        The team of threads; the calling thread's by default.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not match.
    """
    if values.ndim != 2:
        raise ValueError(f"values has shape {values.shape}: give [edges, columns]")
    number, width = int(indptr[-1]), values.shape[1]
    inputs = elements("values", values, (number, width))
    results = elements("out", out, (len(indptr) - 1, width))
    argmax = None if winners is None else winners.reshape(-1)
    zero = sum_dtype(values.dtype).type(0)

    def work(start: int, stop: int) -> None:
        for column, lanes, used in column_passes(width):
            _reduce(lanes)(
                indptr, edge_ids, inputs, width, largest, results, argmax, column, used, zero, start, stop
            )

    def cut(k: int, starts: Array) -> _SplitRowReduction:
        one = slice(k, k + 1)
        shape = (len(starts) - 1, width)
        return _SplitRowReduction(
            starts=starts, edge_ids=edge_ids, values=inputs, out=out[one], largest=largest,
            winners=None if winners is None else winners[one], parts=np.empty(shape, zero.dtype),
            part_winners=None if winners is None else np.empty(shape, np.int64),
        )  # fmt: skip

    run_by_edges(work, indptr, None, workers, cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SplitRowReduction:
    """A row with very many edges: its pieces are reduced like separate rows, and then reduced to one."""

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
        for column, lanes, used in column_passes(width):
            _reduce(lanes)(
                self.starts[number : number + 2], self.edge_ids, self.values, width, self.largest,
                self.parts[number], winners, column, used, zero, 0, 1,
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
    """Copy each row's values to all of its edges, or each value to its argmax edge.

    This is the gradient of `reduce_edges_into` with respect to the values.

    Parameters
    ----------
    indptr
        [V + 1] int32 or int64, the first edge of each row.
    rows
        [V, f] float32 or float64, or 16 bits.
    out
        [E, f] with one of these dtypes.
    winners
        [V, f] C-contiguous int64: the argmax edge ids; all other edges receive zeros.
    workers
        The team of threads; the calling thread's by default.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not match.
    """
    if rows.ndim != 2:
        raise ValueError(f"rows has shape {rows.shape}: give [vertices, columns]")
    width = rows.shape[1]
    inputs = elements("rows", rows, (len(indptr) - 1, width))
    results = elements("out", out, (int(indptr[-1]), width))
    argmax = None if winners is None else winners.reshape(-1)
    zero = sum_dtype(rows.dtype).type(0)

    def work(start: int, stop: int) -> None:
        for column, lanes, used in column_passes(width):
            _spread(lanes)(indptr, inputs, argmax, width, results, column, used, zero, start, stop)

    run_by_edges(work, indptr, None, workers)


def softmax_edges_into(indptr: Array, scores: Array, out: Array, *, workers: Workers | None = None) -> None:
    """Compute the softmax over each row's edges, column by column.

    Parameters
    ----------
    indptr
        [V + 1] int32 or int64, the first edge of each row.
    scores, out
        [E, H] float32 or float64, both of one dtype; they may be the same array.
    workers
        The team of threads; the calling thread's by default.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not match.
    """
    inputs, results, width = _edge_rows(indptr, scores=scores, out=out)

    def work(start: int, stop: int) -> None:
        for column, lanes, used in column_passes(width):
            _softmax(lanes)(indptr, inputs, width, results, column, used, start, stop)

    run_by_edges(work, indptr, None, workers)


def softmax_edges_backward_into(
    indptr: Array, weights: Array, grad: Array, out: Array, *, workers: Workers | None = None
) -> None:
    """Compute the gradient of `softmax_edges_into` with respect to the scores.

    Parameters
    ----------
    indptr
        [V + 1] int32 or int64, the first edge of each row.
    weights, grad, out
        [E, H] float32 or float64, all of one dtype: the softmax, its gradient, and the output for the
        gradient of the scores, which may be one of the two inputs.
    workers
        The team of threads; the calling thread's by default.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not match.
    """
    inputs, grads, results, width = _edge_rows(indptr, weights=weights, grad=grad, out=out)

    def work(start: int, stop: int) -> None:
        for column, lanes, used in column_passes(width):
            _softmax_backward(lanes)(indptr, inputs, grads, width, results, column, used, start, stop)

    run_by_edges(work, indptr, None, workers)


def _edge_rows(indptr: Array, **arrays: Array) -> tuple[Any, ...]:
    first = next(iter(arrays.values()))
    for name, x in arrays.items():
        if x.ndim != 2 or x.dtype not in (np.float32, np.float64) or x.dtype != first.dtype:
            raise ValueError(
                f"{name} has shape {x.shape} and is {x.dtype}: give [edges, columns], all float32 or all "
                "float64"
            )
    shape = (int(indptr[-1]), first.shape[1])
    return (*(elements(name, x, shape) for name, x in arrays.items()), shape[1])
