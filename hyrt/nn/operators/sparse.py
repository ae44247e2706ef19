"""Sparse feature rows as the input of a first layer, and their product with a weight matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.row_kernels import densify
from hyrt.graph.row_source import SparseFeatures
from hyrt.machine.workers import Workers, current_workers
from hyrt.nn.operators.first_derivative import first_derivative
from hyrt.nn.operators.gradients.sparse_gradient import weight_gradient_into
from hyrt.nn.operators.result_memory import empty
from hyrt.nn.operators.tiled_transpose import transpose_into
from hyrt.nn.whole_graph.spmm import spmm_into
from hyrt.quantities import one_line

_GRAIN = 512

Array = NDArray[Any]


@dataclass(slots=True)
class SparseRows:
    """Feature rows as CSR: the input format of bag-of-words datasets."""

    indptr: Array
    """[n+1] int32."""
    columns: Array
    """[nnz] int32."""
    values: Array
    """[nnz] float32."""
    width: int
    """Number of columns of the dense matrix."""

    __repr__ = one_line

    @classmethod
    def of(cls, features: SparseFeatures) -> SparseRows:
        """Convert sparse features to the input of a layer, without a copy."""
        return cls(features.indptr, features.columns, features.values, features.width)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def head(self, rows: int) -> SparseRows:
        """Return the first `rows` rows."""
        end = self.indptr[rows]
        return SparseRows(self.indptr[: rows + 1], self.columns[:end], self.values[:end], self.width)

    def dense(self, workers: Workers | None = None) -> torch.Tensor:
        """Return a dense [n, width] float32 tensor; `workers` defaults to the calling thread's team."""
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
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
        rows: SparseRows = ctx.rows
        grad = grad.detach().contiguous()
        out = empty((grad.shape[1], rows.width), grad)
        weight_gradient_into(
            rows.indptr, rows.columns, rows.values, grad.numpy(), out.numpy(), current_workers()
        )
        return None, out


def _transposed(matrix: torch.Tensor) -> torch.Tensor:
    """Transpose with row-wise writes; torch reads column by column, which takes four times as long."""
    transposed_weight = empty((matrix.shape[1], matrix.shape[0]), matrix)
    transpose_into(matrix.contiguous().numpy(), transposed_weight.numpy())
    return transposed_weight


def sparse_linear(rows: SparseRows, weight: torch.Tensor) -> torch.Tensor:
    """Multiply sparse rows by a transposed weight [out, width]: [n, out], differentiable by the weight.

    Raises
    ------
    ValueError
        If the weight is not [out, width of the rows].
    """
    if weight.ndim != 2 or weight.shape[1] != rows.width:
        raise ValueError(
            f"the rows are {rows.width} wide, but the weight has shape {tuple(weight.shape)}: give "
            f"[out, {rows.width}]"
        )
    return cast(torch.Tensor, _SparseLinear.apply(rows, weight))  # type: ignore[no-untyped-call]
