"""Sparse feature rows as the input of a first layer: their product with a weight, and its gradient."""

# mypy: disable-error-code="no-untyped-def,call-arg,var-annotated,unreachable"

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.graph.row_kernels import densify
from hyrt.graph.row_source import SparseFeatures
from hyrt.nn.full_graph import simd
from hyrt.nn.full_graph.aggregate import spmm_into
from hyrt.nn.full_graph.traversal import column_passes
from hyrt.nn.operators.autograd import empty, empty_array, once_differentiable
from hyrt.nn.operators.blocked_matmul import transpose_into
from hyrt.runtime.intrinsics import prefetch
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.workers import Workers, current_workers

Array = NDArray[Any]

# Minimum number of gradient columns per thread, because each thread passes over all entries.
_MIN_STRIPE = 32
_AHEAD = 16


@cache
def _kernel(lanes: int) -> Any:
    """Compile the loop of `weight_gradient_into` for `lanes` columns."""

    @nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)
    def add_rows(indptr, columns, values, grad, width, start, sums, stripe, at, used):
        line = 64 // sums.itemsize
        final = indptr[-1] - 1
        for i in range(len(indptr) - 1):
            row = simd.load(grad, i * width + start + at, lanes, used)
            for e in range(indptr[i], indptr[i + 1]):
                later = np.int64(columns[min(e + _AHEAD, final)]) * stripe + at
                for s in range(0, lanes if used is None else used, line):
                    prefetch(sums, later + s)
                to = np.int64(columns[e]) * stripe + at
                total = simd.add(simd.load(sums, to, lanes, used), simd.scaled(row, values[e]))
                simd.store(sums, to, total, used)

    return add_rows


def weight_gradient_into(
    indptr: Array, columns: Array, values: Array, grad: Array, out: Array, workers: Workers
) -> None:
    """Write the product of transposed rows `grad` [n, k] and CSR rows [n, f] to `out` [k, f].

    out[k, c] = sum of values[e] * grad[i, k] over the entries e of column c, in the order of their rows i.
    Each thread sums different rows of `out`, so the result has the same bits for any number of threads.
    `grad` and `out` are C-contiguous, float32 or float64; `values` has the same dtype.
    """
    # All integer types use one compiled loop.
    indptr = indptr.astype(np.int64, copy=False)
    width, rows = grad.shape[1], grad.reshape(-1)
    # Each thread has a contiguous stripe. Cores that write to the same cache line, or to lines that the
    # processor prefetches together, would take three to five times as long as one thread.
    stripes = empty_array(out.size, out.dtype)

    def work(start: int, stop: int) -> None:
        stripe = stop - start
        sums = stripes[start * out.shape[1] : stop * out.shape[1]]
        sums[:] = 0
        for at, lanes, used in column_passes(stripe):
            _kernel(lanes)(indptr, columns, values, rows, width, start, sums, stripe, at, used)
        transpose_into(sums.reshape(-1, stripe), out[start:stop])

    workers.run_rows(work, width, max(_MIN_STRIPE, -(-width // workers.count)))


_GRAIN = 512


@dataclass(slots=True)
class SparseRows:
    """Feature rows in CSR format, the input format of bag-of-words datasets."""

    indptr: Array
    """Index of the first entry of each row, [n + 1] int32."""
    columns: Array
    """Column of each entry, [nnz] int32."""
    values: Array
    """Value of each entry, [nnz] float32."""
    width: int
    """Number of columns of the matrix."""

    __repr__ = short_repr

    @classmethod
    def from_features(cls, features: SparseFeatures) -> SparseRows:
        """Convert sparse features to the input of a layer without a copy."""
        return cls(features.indptr, features.columns, features.values, features.width)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def head(self, rows: int) -> SparseRows:
        """Return the first `rows` rows."""
        end = self.indptr[rows]
        return SparseRows(self.indptr[: rows + 1], self.columns[:end], self.values[:end], self.width)

    def to_dense(self, workers: Workers | None = None) -> torch.Tensor:
        """Return a dense float32 tensor [n, width]; `workers` defaults to the team of the calling thread."""
        out = np.empty((len(self), self.width), np.float32)
        (workers or current_workers()).run(
            lambda start, stop: densify(self.indptr, self.columns, self.values, out, start, stop),
            len(self),
            _GRAIN,
        )
        return torch.from_numpy(out)


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: SparseRows, weight: torch.Tensor) -> torch.Tensor:
        transposed_weight = _transposed(weight.detach())
        out = empty((len(rows), len(weight)), weight)
        spmm_into(rows.indptr, rows.columns, transposed_weight.numpy(), out.numpy(), weights=rows.values)
        ctx.rows = rows
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
        rows: SparseRows = ctx.rows
        grad = grad.detach().contiguous()
        out = empty((grad.shape[1], rows.width), grad)
        weight_gradient_into(
            rows.indptr, rows.columns, rows.values, grad.numpy(), out.numpy(), current_workers()
        )
        return None, out


def _transposed(matrix: torch.Tensor) -> torch.Tensor:
    """Transpose a matrix row by row. torch reads it column by column, which takes four times as long."""
    transposed_weight = empty((matrix.shape[1], matrix.shape[0]), matrix)
    transpose_into(matrix.contiguous().numpy(), transposed_weight.numpy())
    return transposed_weight


def sparse_linear(rows: SparseRows, weight: torch.Tensor) -> torch.Tensor:
    """Multiply sparse rows by the transposed `weight` [out, width]; differentiable by `weight`.

    Raises ValueError if the width of the weight does not match.
    """
    if weight.ndim != 2 or weight.shape[1] != rows.width:
        raise ValueError(
            f"the rows have {rows.width} columns, but the weight has shape {tuple(weight.shape)}: pass a "
            f"weight of shape [out, {rows.width}]"
        )
    return cast(torch.Tensor, _SparseLinear.apply(rows, weight))  # type: ignore[no-untyped-call]
