"""Matrix products on OpenCL devices, with vectorized or tiled kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hyrt_devices.opencl.launch import Launcher, ceil_div
from hyrt_devices.opencl.memory import Lease
from hyrt_devices.opencl.programs import Constants, Programs, Tuning

_TILE = 64
_SIDE = 16
_SUBCHUNK = 128
_ONE = np.float32(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes and options of one matrix product of the model."""

    k: int
    n: int
    """Number of columns of the result; `k` is that of the input rows."""
    weight_at: int
    bias_at: int
    """Offset of the bias in the flat parameter buffer in floats, or -1; `weight_at` is that of the weight."""
    relu: bool
    """Whether a ReLU follows the product."""
    transposed: bool
    """Whether the gradient of the input rows is needed."""
    masked: bool
    """Whether the input rows are the output of a ReLU, whose gradient is applied too."""


def sizeless(tuning: Tuning) -> Constants:
    """Return the constants with which the program `sizeless` is compiled."""
    return {
        "BLOCK": tuning.weight_block,
        "ITEMS": tuning.items,
        "GRAIN": tuning.grain,
        "PANEL": tuning.panel,
    }


def parts_shape(tuning: Tuning, shape: Shape, rows: int) -> tuple[int, int, int, int]:
    """Return the shape of the float32 array with the partial sums of a weight gradient."""
    chunks, panels = ceil_div(rows, tuning.weight_chunk), ceil_div(shape.n, tuning.panel)
    return chunks, panels, shape.k + 1, tuning.panel


class _Reduction:
    """Kernels that add up the partial sums of a weight gradient in a fixed order."""

    def __init__(self, programs: Programs, tuning: Tuning, shape: Shape) -> None:
        self._tuning = tuning
        self._shape = shape
        self._kernel = programs.kernel("sizeless", "reduce_parts", sizeless(tuning))

    def launch(self, queue: Launcher, parts: Any, gradients: Any, rows: int, *, add: bool) -> None:
        shape, tuning = self._shape, self._tuning
        chunks, panels = ceil_div(rows, tuning.weight_chunk), ceil_div(shape.n, tuning.panel)
        blocks = ceil_div(ceil_div(shape.k + 1, tuning.weight_block), tuning.items)
        queue.launch(
            self._kernel,
            (panels, blocks),
            (1, tuning.items),
            *(parts, chunks, panels, shape.k, shape.n, gradients, shape.weight_at, shape.bias_at, int(add)),
        )


def _constants(
    tuning: Tuning, k: int, n: int, *, bias: bool, relu: bool, masked: bool
) -> dict[str, int | str]:
    return {
        "K": k,
        "N": n,
        "HAS_BIAS": int(bias),
        "RELU": int(relu),
        "MASKED": int(masked),
        "CHUNK": tuning.weight_chunk,
        "PANEL": tuning.panel,
    }


class VectorMatmul:
    """Matrix product kernels with vector registers, for weights that are packed in panels of columns.

    The panels are allocated from `lease`.
    """

    def __init__(self, programs: Programs, tuning: Tuning, shape: Shape, lease: Lease) -> None:
        self.shape = shape
        self._tuning = tuning
        k, n = shape.k, shape.n
        more: Constants = {
            "GRAIN": tuning.product_grain,
            "SUBCHUNK": _SUBCHUNK,
            "VEC": tuning.vector,
            "ROWS": tuning.product_rows,
        }
        forward = {
            **_constants(tuning, k, n, bias=shape.bias_at >= 0, relu=shape.relu, masked=False),
            **more,
        }
        self._forward = programs.kernel("product_vector", "product", forward)
        self._weights = programs.kernel("product_vector", "product_weights", forward)
        self._pack = programs.kernel("sizeless", "pack", sizeless(tuning))
        self._panels = lease.floats(ceil_div(n, tuning.panel), k, tuning.panel)
        self._reduction = _Reduction(programs, tuning, shape)
        self._backward = self._transposed_panels = None
        if shape.transposed:
            backward = {
                **_constants(tuning, n, k, bias=False, relu=False, masked=shape.masked),
                **more,
            }
            self._backward = programs.kernel("product_vector", "product", backward)
            self._transposed_panels = lease.floats(ceil_div(k, tuning.panel), n, tuning.panel)

    def pack(self, queue: Launcher, parameters: Any) -> None:
        """Pack new weights into the panels that the kernels read."""
        k, n, at = self.shape.k, self.shape.n, self.shape.weight_at
        jobs = [(self._panels, k, n, 1, k)]
        if self._transposed_panels is not None:
            jobs.append((self._transposed_panels, n, k, k, 1))
        for panels, rows, columns, row_step, column_step in jobs:
            blocks = ceil_div(ceil_div(rows, self._tuning.weight_block), self._tuning.items)
            queue.launch(
                self._pack,
                (ceil_div(columns, self._tuning.panel), blocks),
                (1, self._tuning.items),
                *(parameters, at, rows, columns, row_step, column_step, panels),
            )

    def _groups(self, columns: int, rows: int) -> tuple[int, int]:
        return ceil_div(columns, self._tuning.panel), ceil_div(rows, self._tuning.product_grain)

    def forward(self, queue: Launcher, parameters: Any, x: Any, y: Any, rows: int) -> None:
        """Multiply rows by the weight, add the bias and apply the ReLU: y = x W' + b."""
        groups = self._groups(self.shape.n, rows)
        args = (x, self._panels, parameters, self.shape.bias_at, None, _ONE, y, rows)
        queue.launch(self._forward, groups, (1, 1), *args)

    def backward(
        self, queue: Launcher, parameters: Any, grad: Any, activated: Any, out: Any, rows: int
    ) -> None:
        """Compute out = grad W, and apply the gradient of the ReLU that produced the input rows."""
        groups = self._groups(self.shape.k, rows)
        args = (grad, self._transposed_panels, None, -1, activated, _ONE, out, rows)
        queue.launch(self._backward, groups, (1, 1), *args)

    def weights(
        self, queue: Launcher, parts: Any, x: Any, grad: Any, gradients: Any, rows: int, *, add: bool = False
    ) -> None:
        """Compute the gradients of the weight and the bias from partial sums over fixed chunks of rows.

        `parts` has the shape of `parts_shape`. With `add`, the result is added to the existing gradients.
        """
        groups = ceil_div(self.shape.n, self._tuning.panel), ceil_div(rows, self._tuning.weight_chunk)
        queue.launch(self._weights, groups, (1, 1), x, grad, parts, rows)
        self._reduction.launch(queue, parts, gradients, rows, add=add)


class TiledMatmul:
    """Matrix product kernels with tiles in local memory, for unpacked weights.

    The methods are those of `VectorMatmul`. `lease` is not used, because there are no panels.
    """

    def __init__(self, programs: Programs, tuning: Tuning, shape: Shape, lease: Lease) -> None:
        self.shape = shape
        self._tuning = tuning
        k, n = shape.k, shape.n
        forward = _constants(tuning, k, n, bias=shape.bias_at >= 0, relu=shape.relu, masked=False)
        forward["TRANSPOSED"] = 0
        self._forward = programs.kernel("product_tiled", "product", forward)
        self._weights = programs.kernel("product_tiled", "product_weights", forward)
        self._reduction = _Reduction(programs, tuning, shape)
        self._backward = None
        if shape.transposed:
            backward = _constants(tuning, n, k, bias=False, relu=False, masked=shape.masked)
            backward["TRANSPOSED"] = 1
            self._backward = programs.kernel("product_tiled", "product", backward)

    def pack(self, queue: Launcher, parameters: Any) -> None:
        pass

    def _groups(self, columns: int, rows: int) -> tuple[int, int]:
        return ceil_div(columns, _TILE), ceil_div(rows, _TILE)

    def forward(self, queue: Launcher, parameters: Any, x: Any, y: Any, rows: int) -> None:
        shape, groups = self.shape, self._groups(self.shape.n, rows)
        args = (x, parameters, shape.weight_at, shape.bias_at, None, _ONE, y, rows)
        queue.launch(self._forward, groups, (_SIDE, _SIDE), *args)

    def backward(
        self, queue: Launcher, parameters: Any, grad: Any, activated: Any, out: Any, rows: int
    ) -> None:
        groups = self._groups(self.shape.k, rows)
        args = (grad, parameters, self.shape.weight_at, -1, activated, _ONE, out, rows)
        queue.launch(self._backward, groups, (_SIDE, _SIDE), *args)

    def weights(
        self, queue: Launcher, parts: Any, x: Any, grad: Any, gradients: Any, rows: int, *, add: bool = False
    ) -> None:
        groups = (*self._groups(self.shape.n, self.shape.k + 1), ceil_div(rows, self._tuning.weight_chunk))
        queue.launch(self._weights, groups, (_SIDE, _SIDE, 1), x, grad, parts, rows)
        self._reduction.launch(queue, parts, gradients, rows, add=add)


Kernels = VectorMatmul | TiledMatmul
PRODUCTS: dict[str, type[Kernels]] = {"vector": VectorMatmul, "tiled": TiledMatmul}
