"""Dropout with masks that depend on (seed, step, layer, vertex, column), but not on the mini-batch."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from hyrt.nn.operators import kernels
from hyrt.nn.operators.autograd import empty_array, once_differentiable
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.operators.tensor_ops import dropout_tensors
from hyrt.runtime.rng import DROPOUT, dropout_threshold, stream_key
from hyrt.runtime.workers import current_workers
from hyrt.sampling.block import Ids

_GRAIN = 1024


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, vertices: Ids, key: np.uint64, rate: float) -> torch.Tensor:
        ctx.mask = (vertices, key, rate)
        return _masked(x, vertices, key, rate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        # Recompute the mask, which is faster than saving it and reading it from memory.
        return _masked(grad, *ctx.mask), None, None, None


def _masked(x: torch.Tensor, vertices: Ids, key: np.uint64, rate: float) -> torch.Tensor:
    rows = x.detach().contiguous().numpy()
    out = empty_array(rows.shape, rows.dtype)
    threshold, scale = dropout_threshold(rate)
    factor = rows.dtype.type(scale)
    current_workers().run_rows(
        lambda start, stop: kernels.dropout_rows(rows, vertices, key, threshold, factor, out, start, stop),
        len(rows),
        _GRAIN,
    )
    return torch.from_numpy(out)


def dropout(
    x: torch.Tensor | SparseRows,
    vertices: Ids | torch.Tensor,
    *,
    rate: float,
    seed: int,
    step: int,
    layer: int,
) -> torch.Tensor | SparseRows:
    """Zero elements of `x` [n, f] with probability `rate`; scale the others to preserve the expected value.

    The mask depends on `seed`, `step`, `layer` (0 for the input), vertex and column, so dense and sparse rows
    have equal masks. The probability is accurate to 1/65536. `vertices` [n] has the vertex of each row, as a
    tensor if `x` is on a device. Raises ValueError if `rate` is not in [0, 1) or there is not one vertex per
    row.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"the dropout rate of layer {layer} is {rate}, which is not in [0, 1)")
    if len(vertices) != len(x):
        raise ValueError(
            f"dropout of layer {layer} got {len(x)} rows but {len(vertices)} vertices: pass one vertex per "
            "row"
        )
    if rate == 0:
        return x
    key = stream_key(seed, DROPOUT, step, layer)
    if isinstance(vertices, torch.Tensor):
        assert isinstance(x, torch.Tensor)
        threshold, scale = dropout_threshold(rate)
        return dropout_tensors(x, vertices, key, int(threshold), scale)
    if isinstance(x, torch.Tensor):
        return cast(torch.Tensor, _Drop.apply(x, vertices, key, rate))  # type: ignore[no-untyped-call]
    threshold, scale = dropout_threshold(rate)
    values = np.empty_like(x.values)
    current_workers().run_rows(
        lambda start, stop: kernels.dropout_sparse_rows(
            x.indptr, x.columns, x.values, vertices, key, threshold, np.float32(scale), values, start, stop
        ),
        len(x),
        _GRAIN,
    )
    return SparseRows(x.indptr, x.columns, values, x.width)
