"""Operators on edge tensors of a full graph, with the names of GraphPy (6.1).

They compute values from both endpoints (gSDDMMvv, gSDDMMve), and reductions and softmax per row (gSpMMe).
"""

# mypy: disable-error-code="no-untyped-def,call-arg,var-annotated,unreachable"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.nn.full_graph import simd
from hyrt.nn.full_graph.traversal import (
    AHEAD,
    column_passes,
    flatten_contiguous,
    head_passes,
    run_by_edges,
    sum_dtype,
)
from hyrt.runtime.intrinsics import prefetch
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.workers import Workers

Array = NDArray[Any]
EdgePosition = Literal["source", "destination", "edge"]
Operation = Literal["add", "sub", "mul", "div"]

_OPERATIONS = {"add": 0, "sub": 1, "mul": 2, "div": 3}
_POSITIONS = {"source": 0, "destination": 1, "edge": 2}


@cache
def _combine(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def combine_ends(
        indptr, columns, left, right, operation, left_at, right_at, width, out, column, used, start, stop
    ):
        line = 64 // left.itemsize
        final = np.int64(indptr[stop]) - 1
        for i in range(start, stop):
            for e in range(np.int64(indptr[i]), np.int64(indptr[i + 1])):
                c = np.int64(columns[e])
                later = np.int64(columns[min(e + AHEAD, final)])
                for s in range(0, lanes if used is None else used, line):
                    if left_at == 0:
                        prefetch(left, later * width + column + s)
                    if right_at == 0:
                        prefetch(right, later * width + column + s)
                p = c if left_at == 0 else i if left_at == 1 else e
                q = c if right_at == 0 else i if right_at == 1 else e
                a = simd.load(left, p * width + column, lanes, used)
                b = simd.load(right, q * width + column, lanes, used)
                if operation == 0:
                    a = simd.add(a, b)
                elif operation == 1:
                    a = simd.subtract(a, b)
                elif operation == 2:
                    a = simd.multiply(a, b)
                else:
                    a = simd.divide(a, b)
                simd.store(out, e * width + column, a, used)

    return combine_ends


@cache
def _dot(heads: int, width: int, lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def dot_ends(indptr, columns, left, right, left_at, right_at, num_heads, head, used, out, start, stop):
        line = 64 // left.itemsize
        step = num_heads * width
        column = head * width
        final = np.int64(indptr[stop]) - 1
        for i in range(start, stop):
            for e in range(np.int64(indptr[i]), np.int64(indptr[i + 1])):
                c = np.int64(columns[e])
                later = np.int64(columns[min(e + AHEAD, final)])
                for s in range(0, lanes if used is None else used, line):
                    if left_at == 0:
                        prefetch(left, later * step + column + s)
                    if right_at == 0:
                        prefetch(right, later * step + column + s)
                p = c if left_at == 0 else i if left_at == 1 else e
                q = c if right_at == 0 else i if right_at == 1 else e
                a = simd.load(left, p * step + column, lanes, used)
                b = simd.load(right, q * step + column, lanes, used)
                dots = simd.sums_of_heads(simd.multiply(a, b), width, heads)
                simd.store(out, e * num_heads + head, dots, None)

    return dot_ends


def combine_into(
    indptr: Array,
    columns: Array,
    left: Array,
    right: Array,
    out: Array,
    operation: Operation,
    left_at: EdgePosition = "source",
    right_at: EdgePosition = "destination",
    *,
    workers: Workers | None = None,
) -> None:
    """Compute out[e] = left `operation` right for each edge e, column by column.

    `left_at` and `right_at` select the operand row that an edge reads: that of its source, its destination,
    or its own. Operands [V, f] ([E, f] for edge tensors) and `out` [E, f] are float32, float64, or 16-bit;
    `indptr` and `columns` are int32 or int64. Raises ValueError if shapes or dtypes do not match.
    """
    if out.ndim != 2:
        raise ValueError(f"out has shape {out.shape}: pass [edges, columns]")
    width = out.shape[1]
    inputs = (
        flatten_contiguous("left", left, (_rows(indptr, columns, left_at), width)),
        flatten_contiguous("right", right, (_rows(indptr, columns, right_at), width)),
    )
    results = flatten_contiguous("out", out, (len(columns), width))
    codes = (_OPERATIONS[operation], _POSITIONS[left_at], _POSITIONS[right_at])

    def compute(indptr: Array, left: Array, right: Array, start: int, stop: int) -> None:
        for column, lanes, used in column_passes(width):
            _combine(lanes)(indptr, columns, left, right, *codes, width, results, column, used, start, stop)

    _over_edges(compute, indptr, inputs, (left_at, right_at), width, workers)


def dot_into(
    indptr: Array,
    columns: Array,
    left: Array,
    right: Array,
    out: Array,
    left_at: EdgePosition = "source",
    right_at: EdgePosition = "destination",
    *,
    workers: Workers | None = None,
) -> None:
    """Compute out[e, h] = left[h] . right[h] for each edge e and head h.

    Operands are [V, H, d], or [E, H, d] for edge tensors, and `out` is [E, H]. Otherwise like `combine_into`.
    """
    if left.ndim != 3 or not left.shape[1] or not left.shape[2]:
        raise ValueError(f"left has shape {left.shape}: pass [rows, heads, columns per head]")
    heads, width = left.shape[1:]
    inputs = (
        flatten_contiguous("left", left, (_rows(indptr, columns, left_at), heads, width)),
        flatten_contiguous("right", right, (_rows(indptr, columns, right_at), heads, width)),
    )
    results = flatten_contiguous("out", out, (len(columns), heads))
    places = _POSITIONS[left_at], _POSITIONS[right_at]

    def compute(indptr: Array, left: Array, right: Array, start: int, stop: int) -> None:
        for head, together, lanes, used in head_passes(heads, width):
            _dot(together, width, lanes)(
                indptr, columns, left, right, *places, heads, head, used, results, start, stop
            )

    _over_edges(compute, indptr, inputs, (left_at, right_at), heads * width, workers)


def _over_edges(
    compute: Callable[[Array, Array, Array, int, int], None],
    indptr: Array,
    ends: tuple[Array, Array],
    places: tuple[EdgePosition, EdgePosition],
    step: int,
    workers: Workers | None,
) -> None:
    """Call `compute(indptr, left, right, start, stop)` for all rows, with long rows split into pieces."""

    def work(start: int, stop: int) -> None:
        compute(indptr, *ends, start, stop)

    def cut(k: int, starts: Array) -> _SplitRowEdges:
        # Each piece is row 0 of a separate indptr.
        left, right = (
            x[k * step :] if column == "destination" else x for x, column in zip(ends, places, strict=True)
        )
        return _SplitRowEdges(starts, left, right, compute)

    run_by_edges(work, indptr, None, workers, cut)


@dataclass(frozen=True, slots=True)
class _SplitRowEdges:
    """Row with very many edges, whose results are independent of each other."""

    starts: Array
    left: Array
    right: Array
    compute: Callable[[Array, Array, Array, int, int], None]

    __repr__ = short_repr

    def compute_piece(self, number: int) -> None:
        self.compute(self.starts[number : number + 2], self.left, self.right, 0, 1)

    def finish(self) -> None:
        pass


def _rows(indptr: Array, columns: Array, column: EdgePosition) -> int:
    return len(columns) if column == "edge" else len(indptr) - 1


@cache
def _reduce(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def reduce_rows(indptr, edges, values, width, largest, out, winners, column, used, zero, start, stop):
        for i in range(start, stop):
            total = simd.filled(zero, lanes)
            winner = simd.filled(np.int64(-1), lanes)
            first = np.int64(indptr[i])
            for t in range(first, np.int64(indptr[i + 1])):
                e = np.int64(t) if edges is None else np.int64(edges[t])
                row = simd.load(values, e * width + column, lanes, used)
                if largest:
                    number = simd.filled(e, lanes)
                    if t == first:
                        total = row
                        winner = number
                    else:
                        winner = simd.where_above(row, total, number, winner)
                        total = simd.where_above(row, total, row, total)
                else:
                    total = simd.add(total, row)
            simd.store(out, i * width + column, total, used)
            if winners is not None:
                simd.store(winners, i * width + column, winner, used)

    return reduce_rows


@cache
def _spread(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def spread_rows(indptr, rows, winners, width, out, column, used, zero, start, stop):
        zeros = simd.filled(zero, lanes)
        for i in range(start, stop):
            row = simd.load(rows, i * width + column, lanes, used)
            if winners is not None:
                winner = simd.load(winners, i * width + column, lanes, used)
            for e in range(np.int64(indptr[i]), np.int64(indptr[i + 1])):
                if winners is None:
                    simd.store(out, e * width + column, row, used)
                else:
                    won = simd.where_equal(winner, e, row, zeros)
                    simd.store(out, e * width + column, won, used)

    return spread_rows


@cache
def _softmax(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def softmax_rows(indptr, scores, width, out, column, used, start, stop):
        lowest = simd.filled(scores.dtype.type(-np.inf), lanes)
        zeros = simd.filled(scores.dtype.type(0), lanes)
        for i in range(start, stop):
            first, end = np.int64(indptr[i]), np.int64(indptr[i + 1])
            top, total = lowest, zeros
            for e in range(first, end):
                row = simd.load(scores, e * width + column, lanes, used)
                top = simd.where_above(row, top, row, top)
            for e in range(first, end):
                row = simd.exp(simd.subtract(simd.load(scores, e * width + column, lanes, used), top))
                total = simd.add(total, row)
                simd.store(out, e * width + column, row, used)
            inverse = simd.inverse_or_zero(total)
            for e in range(first, end):
                row = simd.load(out, e * width + column, lanes, used)
                simd.store(out, e * width + column, simd.multiply(row, inverse), used)

    return softmax_rows


@cache
def _softmax_backward(lanes: int) -> Any:
    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def softmax_backward(indptr, weights, grad, width, out, column, used, start, stop):
        zeros = simd.filled(weights.dtype.type(0), lanes)
        for i in range(start, stop):
            first, end = np.int64(indptr[i]), np.int64(indptr[i + 1])
            mean = zeros
            for e in range(first, end):
                weight = simd.load(weights, e * width + column, lanes, used)
                g = simd.load(grad, e * width + column, lanes, used)
                mean = simd.add(mean, simd.multiply(weight, g))
            for e in range(first, end):
                weight = simd.load(weights, e * width + column, lanes, used)
                g = simd.load(grad, e * width + column, lanes, used)
                g = simd.multiply(weight, simd.subtract(g, mean))
                simd.store(out, e * width + column, g, used)

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
    """Reduce the values of each row's edges to their sum or maximum per column; zero without edges.

    `values` [E, f] and `out` [V, f] are float32, float64, or 16 bits. `edge_ids` [E] has the index of each
    edge's row in `values` (default: edge order). For maxima, `winners` [V, f], C-contiguous int64, receives
    argmax edge ids, and -1 for rows without edges. Raises ValueError if shapes or dtypes do not match.
    """
    if values.ndim != 2:
        raise ValueError(f"values has shape {values.shape}: pass [edges, columns]")
    number, width = int(indptr[-1]), values.shape[1]
    inputs = flatten_contiguous("values", values, (number, width))
    results = flatten_contiguous("out", out, (len(indptr) - 1, width))
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
    """Row with very many edges. Its pieces are reduced like separate rows, then to a single row."""

    starts: Array
    edge_ids: Array | None
    values: Array
    """Values of all edges as a flat array."""
    out: Array
    largest: bool
    winners: Array | None
    parts: Array
    """Results of the pieces, [pieces, f]."""
    part_winners: Array | None

    __repr__ = short_repr

    def compute_piece(self, number: int) -> None:
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


def broadcast_to_edges_into(
    indptr: Array,
    rows: Array,
    out: Array,
    *,
    winners: Array | None = None,
    workers: Workers | None = None,
) -> None:
    """Copy each row's values [V, f] to all of its edges [E, f], or each value to its argmax edge only.

    This is the gradient of `reduce_edges_into`. `winners` [V, f] are the C-contiguous int64 ids of the argmax
    edges; all other edges receive zeros. Raises ValueError if shapes or dtypes do not match.
    """
    if rows.ndim != 2:
        raise ValueError(f"rows has shape {rows.shape}: pass [vertices, columns]")
    width = rows.shape[1]
    inputs = flatten_contiguous("rows", rows, (len(indptr) - 1, width))
    results = flatten_contiguous("out", out, (int(indptr[-1]), width))
    argmax = None if winners is None else winners.reshape(-1)
    zero = sum_dtype(rows.dtype).type(0)

    def work(start: int, stop: int) -> None:
        for column, lanes, used in column_passes(width):
            _spread(lanes)(indptr, inputs, argmax, width, results, column, used, zero, start, stop)

    run_by_edges(work, indptr, None, workers)


def softmax_edges_into(indptr: Array, scores: Array, out: Array, *, workers: Workers | None = None) -> None:
    """Compute the softmax of `scores` [E, H] over each row's edges, column by column.

    `scores` and `out` are both float32 or both float64, and may be the same array. Raises ValueError if
    shapes or dtypes do not match.
    """
    inputs, results, width = _edge_rows(indptr, scores=scores, out=out)

    def work(start: int, stop: int) -> None:
        for column, lanes, used in column_passes(width):
            _softmax(lanes)(indptr, inputs, width, results, column, used, start, stop)

    run_by_edges(work, indptr, None, workers)


def softmax_edges_backward_into(
    indptr: Array, weights: Array, grad: Array, out: Array, *, workers: Workers | None = None
) -> None:
    """Compute the gradient of `softmax_edges_into` with respect to the scores from its result `weights`.

    All arrays are [E, H], float32 or float64. `out` may be `weights` or `grad` itself. Raises ValueError if
    shapes or dtypes do not match.
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
                f"{name} has shape {x.shape} and dtype {x.dtype}: pass [edges, columns], with all arrays in "
                "float32 or all in float64"
            )
    shape = (int(indptr[-1]), first.shape[1])
    return (*(flatten_contiguous(name, x, shape) for name, x in arrays.items()), shape[1])
