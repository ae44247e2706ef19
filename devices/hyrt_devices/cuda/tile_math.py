"""Operations on the rows of a tile: a protocol, and implementations with torch operators and on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.nn.description import Product
from hyrt.nn.full_graph.aggregate import spmm_into
from hyrt.nn.operators import kernels
from hyrt.nn.operators.autograd import empty
from hyrt.nn.operators.linear import linear_backward, linear_forward
from hyrt.nn.operators.tensor_ops import dropout_mask, segment_sum
from hyrt.runtime.rng import dropout_threshold
from hyrt.runtime.workers import current_workers
from hyrt_devices.cuda.chunk_memory import WORK_NUMBERS

Array = NDArray[Any]


class TileEdges(NamedTuple):
    """Edges of a tile, sorted by destination row, with optional scales for destinations and sources."""

    rows: torch.Tensor
    """Destination rows that have edges, ascending: [n] int32."""
    starts: torch.Tensor
    """Index of the first edge of each of the n rows, followed by the number of edges: [n + 1] int32."""
    columns: torch.Tensor
    """Source row of each edge: [E] int32."""
    row_scale: torch.Tensor | None
    column_scale: torch.Tensor | None
    """`row_scale` and `column_scale` are float32 scales of all destination rows and all source rows."""


class TileMath(Protocol):
    """Operations on float32 rows of tiles in the memory of one device."""

    def copy(self, out: torch.Tensor, rows: torch.Tensor, *, non_blocking: bool) -> None:
        """Copy rows within the device, or between the device and the host."""
        ...

    def clear(self, rows: torch.Tensor) -> None:
        """Set rows to zero."""
        ...

    def drop(self, rows: torch.Tensor, vertices: Array, key: np.uint64, rate: float) -> None:
        """Apply dropout in place to rows of [n] vertices, masked as in `hyrt.nn.operators.dropout`."""
        ...

    def mask(self, grad: torch.Tensor, activated: torch.Tensor, scale: float) -> None:
        """Multiply a gradient in place by `scale`, or by zero if the ReLU's result is not positive."""
        ...

    def gather(self, x: torch.Tensor, edges: TileEdges, starts: Array, out: torch.Tensor) -> None:
        """Add the sum of each row's source rows in `x` to `out`. `starts` is the host's `edges.starts`."""
        ...

    def multiply(self, rows: torch.Tensor, product: Product, out: torch.Tensor) -> None:
        """Write the product of rows and a weight to `out`, with bias and ReLU."""
        ...

    def multiply_backward(
        self,
        rows: torch.Tensor,
        product: Product,
        grad: torch.Tensor,
        weight_sum: torch.Tensor,
        bias_sum: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> None:
        """Compute the gradients of a product. `mask` must already have applied its ReLU to `grad`.

        Parameters
        ----------
        rows, product
            The arguments of `multiply`.
        grad
            Gradient of the product: [n, out features].
        weight_sum, bias_sum
            Accumulated gradients, which are updated in place; `bias_sum` is None if there is no bias.
        out
            Output for the gradient of the rows, [n, in features], or None if it is not needed.
        """
        ...


class TorchTileMath:
    """Implementation of `TileMath` with torch operators. Sums have a fixed order, without float atomics."""

    def copy(self, out: torch.Tensor, rows: torch.Tensor, *, non_blocking: bool) -> None:
        out.copy_(rows, non_blocking=non_blocking)

    def clear(self, rows: torch.Tensor) -> None:
        rows.zero_()

    def drop(self, rows: torch.Tensor, vertices: Array, key: np.uint64, rate: float) -> None:
        threshold, scale = dropout_threshold(rate)
        # A 64-bit random number serves four columns, but is expanded to 64 bits per column.
        step = max(1, WORK_NUMBERS // (4 * rows.shape[1]))
        for start in range(0, len(rows), step):
            part = torch.from_numpy(np.ascontiguousarray(vertices[start : start + step])).to(rows.device)
            mask = dropout_mask(part, rows.shape[1], key, int(threshold))
            rows[start : start + step].mul_(mask).mul_(scale)

    def mask(self, grad: torch.Tensor, activated: torch.Tensor, scale: float) -> None:
        step = max(1, WORK_NUMBERS // grad.shape[1])
        for start in range(0, len(grad), step):
            part = slice(start, start + step)
            grad[part].mul_(activated[part] > 0).mul_(scale)

    def gather(self, x: torch.Tensor, edges: TileEdges, starts: Array, out: torch.Tensor) -> None:
        for first, last, edge_first, edge_last in _pieces(starts, max(1, WORK_NUMBERS // x.shape[1])):
            rows, sources = edges.rows[first:last], edges.columns[edge_first:edge_last]
            values = x.index_select(0, sources)
            if edges.column_scale is not None:
                values.mul_(edges.column_scale.index_select(0, sources)[:, None])
            offsets = edges.starts[first : last + 1].clamp(edge_first, edge_last) - edge_first
            sums = segment_sum(values, offsets)
            if edges.row_scale is not None:
                sums.mul_(edges.row_scale.index_select(0, rows)[:, None])
            out.index_add_(0, rows, sums)  # The row indices are unique, so index_add_ is deterministic.

    def multiply(self, rows: torch.Tensor, product: Product, out: torch.Tensor) -> None:
        weight = product.weight.detach()
        if product.bias is None:
            torch.mm(rows, weight.t(), out=out)
        else:
            torch.addmm(product.bias.detach(), rows, weight.t(), out=out)
        if product.relu:
            out.relu_()

    def multiply_backward(
        self,
        rows: torch.Tensor,
        product: Product,
        grad: torch.Tensor,
        weight_sum: torch.Tensor,
        bias_sum: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> None:
        weight_sum.addmm_(grad.t(), rows)
        if bias_sum is not None:
            bias_sum.add_(grad.sum(0))
        if out is not None:
            torch.mm(grad, product.weight.detach(), out=out)


def _pieces(starts: Array, max_edges: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the row and edge ranges of pieces of a tile with at most `max_edges` edges."""
    total = int(starts[-1])
    for edge_first in range(0, total, max_edges):
        edge_last = min(edge_first + max_edges, total)
        first = int(np.searchsorted(starts, edge_first, side="right")) - 1
        last = int(np.searchsorted(starts, edge_last, side="left"))
        yield first, last, edge_first, edge_last


_GRAIN = 1024
# Maximum number of elements in the temporary matrix of sums.
_MAX_SUMS = 1 << 20


class HostTileMath:
    """Implementation of `TileMath` on the host. Results do not depend on threads or memory alignment."""

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
            kernels.dropout_rows(values, vertices, key, threshold, factor, values, start, stop)

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
            out.index_add_(0, rows[start:stop], sums[start:stop])  # Unique indices, so deterministic.

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
