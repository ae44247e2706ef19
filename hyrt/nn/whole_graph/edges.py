"""Edge values computed from the values at both ends: gSDDMMvv and gSDDMMve of GraphPy (6.1)."""

# mypy: disable-error-code="no-untyped-def,call-arg,var-annotated,unreachable"
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.intrinsics import prefetch
from hyrt.machine.kernels.kept_kernels import nb
from hyrt.machine.workers import Workers
from hyrt.nn.whole_graph import vectors
from hyrt.nn.whole_graph.edge_ranges import run_by_edges
from hyrt.nn.whole_graph.rows import AHEAD, column_passes, elements, head_passes
from hyrt.quantities import one_line

Array = NDArray[Any]
At = Literal["source", "destination", "edge"]
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
                a = vectors.load(left, p * width + column, lanes, used)
                b = vectors.load(right, q * width + column, lanes, used)
                if operation == 0:
                    a = vectors.add(a, b)
                elif operation == 1:
                    a = vectors.subtract(a, b)
                elif operation == 2:
                    a = vectors.multiply(a, b)
                else:
                    a = vectors.divide(a, b)
                vectors.store(out, e * width + column, a, used)

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
                a = vectors.load(left, p * step + column, lanes, used)
                b = vectors.load(right, q * step + column, lanes, used)
                dots = vectors.sums_of_heads(vectors.multiply(a, b), width, heads)
                vectors.store(out, e * num_heads + head, dots, None)

    return dot_ends


def combine_into(
    indptr: Array,
    columns: Array,
    left: Array,
    right: Array,
    out: Array,
    operation: Operation,
    left_at: At = "source",
    right_at: At = "destination",
    *,
    workers: Workers | None = None,
) -> None:
    """Compute out[e] = left operation right for each edge e, column by column.

    Parameters
    ----------
    indptr, columns
        [V + 1] and [E] int32 or int64: CSR over the edges.
    left, right
        [V, f], or [E, f] for edge tensors; float32, float64, or 16 bits.
    out
        [E, f] with one of these dtypes.
    operation
        "add", "sub", "mul" or "div".
    left_at, right_at
        Index of the row that an edge reads: its "source", its "destination", or the "edge" itself.
    workers
        The team of threads; the calling thread's by default.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not match.
    """
    if out.ndim != 2:
        raise ValueError(f"out has shape {out.shape}: give [edges, columns]")
    width = out.shape[1]
    inputs = (
        elements("left", left, (_rows(indptr, columns, left_at), width)),
        elements("right", right, (_rows(indptr, columns, right_at), width)),
    )
    results = elements("out", out, (len(columns), width))
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
    left_at: At = "source",
    right_at: At = "destination",
    *,
    workers: Workers | None = None,
) -> None:
    """Compute out[e, h] = left[h] . right[h] for each edge e and head h.

    Parameters
    ----------
    indptr, columns, left_at, right_at, workers
        The same as for `combine_into`.
    left, right
        [V, H, d], or [E, H, d] for edge tensors; float32, float64, or 16 bits.
    out
        [E, H] with one of these dtypes.

    Raises
    ------
    ValueError
        If the shapes or dtypes do not match.
    """
    if left.ndim != 3 or not left.shape[1] or not left.shape[2]:
        raise ValueError(f"left has shape {left.shape}: give [rows, heads, columns of a head]")
    heads, width = left.shape[1:]
    inputs = (
        elements("left", left, (_rows(indptr, columns, left_at), heads, width)),
        elements("right", right, (_rows(indptr, columns, right_at), heads, width)),
    )
    results = elements("out", out, (len(columns), heads))
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
    places: tuple[At, At],
    step: int,
    workers: Workers | None,
) -> None:
    """Call `compute(indptr, left, right, start, stop)` for all rows; split rows with very many edges."""

    def work(start: int, stop: int) -> None:
        compute(indptr, *ends, start, stop)

    def cut(k: int, starts: Array) -> _SplitRowEdges:
        # A piece is row 0 of a separate indptr.
        left, right = (
            x[k * step :] if column == "destination" else x for x, column in zip(ends, places, strict=True)
        )
        return _SplitRowEdges(starts, left, right, compute)

    run_by_edges(work, indptr, None, workers, cut)


@dataclass(frozen=True, slots=True)
class _SplitRowEdges:
    """A row with very many edges, each of which has a separate result."""

    starts: Array
    left: Array
    right: Array
    compute: Callable[[Array, Array, Array, int, int], None]

    __repr__ = one_line

    def piece(self, number: int) -> None:
        self.compute(self.starts[number : number + 2], self.left, self.right, 0, 1)

    def finish(self) -> None:
        pass


def _rows(indptr: Array, columns: Array, column: At) -> int:
    return len(columns) if column == "edge" else len(indptr) - 1
