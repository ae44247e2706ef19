"""Operations on tile rows in host memory, in fixed row ranges that are divided among worker threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.nn.description import Product
from hyrt.nn.full_graph.aggregate import spmm_into
from hyrt.nn.operators import kernels
from hyrt.nn.operators.autograd import empty
from hyrt.nn.operators.linear import linear_backward, linear_forward
from hyrt.runtime.rng import dropout_threshold
from hyrt.runtime.workers import current_workers
from hyrt_devices.cuda.chunks.tile_math import TileEdges

Array = NDArray[Any]

_GRAIN = 1024
# Maximum number of elements in the temporary matrix of sums.
_MAX_SUMS = 1 << 20


class HostTileMath:
    """`TileMath` on the host; results are bit-equal for any number of threads and any memory alignment."""

    def copy(self, out: torch.Tensor, rows: torch.Tensor, *, non_blocking: bool) -> None:
        def work(start: int, stop: int) -> None:
            out[start:stop].copy_(rows[start:stop])

        current_workers().run_rows(work, len(out), _GRAIN)

    def clear(self, rows: torch.Tensor) -> None:
        def work(start: int, stop: int) -> None:
            rows[start:stop].zero_()

        current_workers().run_rows(work, len(rows), _GRAIN)

    def drop(self, rows: torch.Tensor, vertices: Array, key: np.uint64, rate: float) -> None:
        threshold, scale = dropout_threshold(rate)
        values, factor = rows.numpy(), np.float32(scale)

        def work(start: int, stop: int) -> None:
            kernels.drop(values, vertices, key, threshold, factor, values, start, stop)

        current_workers().run_rows(work, len(values), _GRAIN)

    def mask(self, grad: torch.Tensor, activated: torch.Tensor, scale: float) -> None:
        def work(start: int, stop: int) -> None:
            grad[start:stop].mul_(activated[start:stop] > 0).mul_(scale)

        current_workers().run_rows(work, len(grad), _GRAIN)

    def gather(self, x: torch.Tensor, edges: TileEdges, starts: Array, out: torch.Tensor) -> None:
        rows, columns, source, width = edges.rows, edges.columns.numpy(), x.numpy(), x.shape[1]
        by_column = None if edges.column_scale is None else edges.column_scale.numpy()
        step = max(1, _MAX_SUMS // width)
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            sums = empty((len(part), width), x)
            by_row = None if edges.row_scale is None else edges.row_scale.index_select(0, part).numpy()
            spmm_into(
                starts[first : first + len(part) + 1],
                columns,
                source,
                sums.numpy(),
                row_scale=by_row,
                source_scale=by_column,
            )
            self._add_to_rows(out, part, sums)

    @staticmethod
    def _add_to_rows(out: torch.Tensor, rows: torch.Tensor, sums: torch.Tensor) -> None:
        def work(start: int, stop: int) -> None:
            out.index_add_(0, rows[start:stop], sums[start:stop])  # Row indices are unique.

        current_workers().run_rows(work, len(rows), _GRAIN)

    def multiply(self, rows: torch.Tensor, product: Product, out: torch.Tensor) -> None:
        bias = None if product.bias is None else product.bias.detach()
        linear_forward(rows, product.weight.detach(), bias, precision=rows.dtype, relu=product.relu, out=out)

    def multiply_backward(
        self,
        rows: torch.Tensor,
        product: Product,
        grad: torch.Tensor,
        weight_sum: torch.Tensor,
        bias_sum: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> None:
        of_weight, of_bias = linear_backward(
            rows,
            product.weight.detach(),
            grad,
            precision=rows.dtype,
            x_grad=out,
            needs_bias=bias_sum is not None,
        )
        assert of_weight is not None
        weight_sum.add_(of_weight)
        if bias_sum is not None:
            assert of_bias is not None
            bias_sum.add_(of_bias)
