"""Layout of a model's parameters in the weights of a task, and of gradients in the output of a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hyrt_hls.task_layout import MAX_CHUNKS, MAX_LAYERS, PANEL_ROWS
from hyrt_perfmodel.fpga_design import LANES, num_chunks
from numpy.typing import NDArray

from hyrt.device import check_parameters
from hyrt.errors import UnsupportedModelError
from hyrt.nn.description import LayerDescription, ModelDescription, describe

Floats = NDArray[np.float32]
_INSTEAD = "train it on cpu or cuda"


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of a layer and the offset of its weights."""

    parts: int
    """Number of rows per destination in the product: 2 if its self row is concatenated, else 1."""
    in_width: int
    out_width: int
    """Number of columns of the layer's result; `in_width` is that of its source rows."""
    weights: int
    """First word of the weight matrix, which the bias follows."""

    @property
    def in_chunks(self) -> int:
        return num_chunks(self.in_width)

    @property
    def out_chunks(self) -> int:
        return num_chunks(self.out_width)

    @property
    def depth(self) -> int:
        """Number of rows of the weight matrix, including padding."""
        return self.parts * self.in_chunks * LANES

    @property
    def words(self) -> int:
        """Number of words of the weight matrix and the bias."""
        return (self.depth + 1) * self.out_chunks


def described(model: torch.nn.Module, device: str) -> ModelDescription:
    """Describe a model, possibly on the meta device, for the trainer's kernels.

    Raises UnsupportedModelError if the kernels do not support the model, which is checked only here.
    """
    found = describe(model, device, supported="gcn, graphsage with mean or sum")
    layer_shapes(found, device)
    return found


def layer_shapes(model: ModelDescription, device: str = "this device") -> list[LayerShape]:
    """Return the shapes of a model's layers, with consecutive weight offsets.

    Raises UnsupportedModelError if a layer is not supported or is too wide for the kernels.
    """
    if not 1 <= len(model.layers) <= MAX_LAYERS:
        raise UnsupportedModelError(
            f"the model has {len(model.layers)} layers, but the kernels of {device} support 1 to "
            f"{MAX_LAYERS}: {_INSTEAD}"
        )
    shapes: list[LayerShape] = []
    for layer in model.layers:
        shape = _shape(layer, shapes[-1] if shapes else None, device)
        _check_width(layer.name, shape, device)
        shapes.append(shape)
    return shapes


def _shape(layer: LayerDescription, below: LayerShape | None, device: str) -> LayerShape:
    if layer.aggregation.reduce == "max":
        raise UnsupportedModelError(
            f"layer {layer.name!r} aggregates by maximum, but the kernels of {device} only compute sums: "
            f"{_INSTEAD}"
        )
    if len(layer.products) != 1:
        raise UnsupportedModelError(
            f"layer {layer.name!r} has {len(layer.products)} products, but the kernels of {device} compute "
            f"one per layer (gcn, graphsage): {_INSTEAD}"
        )
    out_width, columns = layer.products[0].weight.shape
    parts = 2 if layer.aggregation.self_path == "concat" else 1
    if columns % parts or (below and columns // parts != below.out_width):
        origin = f" of {below.out_width} values from the layer below" if below else ""
        raise UnsupportedModelError(
            f"layer {layer.name!r} cannot run on {device}, because its weight has {columns} columns, which "
            f"does not match {parts} input rows{origin}: {_INSTEAD}"
        )
    start = below.weights + below.words if below else 0
    return LayerShape(parts, columns // parts, out_width, start)


def _check_width(name: str, shape: LayerShape, device: str) -> None:
    widest = max(shape.in_chunks, shape.out_chunks)
    if widest > MAX_CHUNKS or shape.depth > PANEL_ROWS:
        raise UnsupportedModelError(
            f"layer {name!r} has {shape.parts} input rows of {shape.in_width} values and {shape.out_width} "
            f"outputs, but the kernels of {device} support rows of up to {MAX_CHUNKS * LANES} values and "
            f"weights of up to {PANEL_ROWS} padded rows: {_INSTEAD}"
        )


class WeightLayout:
    """Converter between a model's parameters or gradients and the packed layout of the kernels.

    `parameters` are the trainable parameters, in the order of gradients and updates. Raises
    UnsupportedModelError if the kernels do not support a layer, or two layers share a parameter.
    """

    def __init__(
        self, model: ModelDescription, parameters: Sequence[torch.nn.Parameter], device: str = "this device"
    ) -> None:
        self.layers = layer_shapes(model, device)
        self.num_floats = (self.layers[-1].weights + self.layers[-1].words) * LANES
        self._shapes = [tuple(parameter.shape) for parameter in parameters]
        at = {id(parameter): number for number, parameter in enumerate(parameters)}
        # Index of the weight and index of the bias, per layer.
        self._numbers: list[tuple[int, int | None]] = []
        seen: set[int] = set()
        for layer in model.layers:
            product = layer.products[0]
            numbers = at[id(product.weight)], None if product.bias is None else at[id(product.bias)]
            used = {number for number in numbers if number is not None}
            if used & seen:
                raise UnsupportedModelError(
                    f"layer {layer.name!r} shares a parameter with another layer, which {device} does not "
                    f"support: {_INSTEAD}"
                )
            seen |= used
            self._numbers.append(numbers)

    def pack(self, parameters: Sequence[torch.Tensor]) -> Floats:
        """Pack parameters into a new array [num_floats]. Raises ArgumentError if they do not match."""
        check_parameters(parameters, self._shapes)
        packed = np.zeros(self.num_floats, np.float32)
        for shape, (weight, bias) in zip(self.layers, self._numbers, strict=True):
            matrix, row = self._views(packed, shape)
            values = _values(parameters[weight]).reshape(shape.out_width, shape.parts, shape.in_width)
            matrix[...] = values.transpose(1, 2, 0)
            if bias is not None:
                row[...] = _values(parameters[bias])
        return packed

    def unpack(self, gradients: Floats) -> list[Floats]:
        """Unpack the gradients [num_floats] of a launch to one new array per parameter.

        The gradient is zero for parameters that the model does not use.
        """
        unpacked = [np.zeros(shape, np.float32) for shape in self._shapes]
        for shape, (weight, bias) in zip(self.layers, self._numbers, strict=True):
            matrix, row = self._views(gradients, shape)
            unpacked[weight][...] = matrix.transpose(2, 0, 1).reshape(shape.out_width, -1)
            if bias is not None:
                unpacked[bias][...] = row
        return unpacked

    @staticmethod
    def _views(packed: Floats, shape: LayerShape) -> tuple[Floats, Floats]:
        """Return unpadded views of the weight [parts, in_width, out_width] and of the bias [out_width]."""
        columns = shape.out_chunks * LANES
        rows = packed[shape.weights * LANES :][: shape.words * LANES].reshape(-1, columns)
        matrix = rows[:-1].reshape(shape.parts, shape.in_chunks * LANES, columns)
        return matrix[:, : shape.in_width, : shape.out_width], rows[-1, : shape.out_width]


def _values(parameter: torch.Tensor) -> Floats:
    values: Floats = parameter.detach().to("cpu", torch.float32).numpy()
    return values
