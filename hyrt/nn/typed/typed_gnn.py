"""GNN over a heterogeneous graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hyrt.errors import UnsupportedModel
from hyrt.nn.architecture import Architecture
from hyrt.nn.description import ModelDescription
from hyrt.nn.inputs import ModelInputs, Rows
from hyrt.nn.layer import Layer
from hyrt.nn.model import GNN
from hyrt.nn.typed.input_maps import InputMaps, projected
from hyrt.nn.typed.typed_input import TypedInPlace, TypedInput
from hyrt.nn.typed.typed_shape import TypedShape
from hyrt.sampling.block import Block


class TypedGNN(GNN):
    """A GNN whose layers receive rows of one width, projected from the rows of each type.

    Parameters
    ----------
    architecture
        Architecture of the model; `in_features` is the width to which rows of all types are projected, and
        `shape` has the types.
    layers
        The layers; by default the layers of the model kind.
    """

    def __init__(self, architecture: Architecture, layers: Sequence[Layer] | None = None) -> None:
        super().__init__(architecture, layers)
        shape = architecture.shape
        assert shape is not None, "a typed model is made for the types of a graph"
        self.input = InputMaps(shape, architecture.in_features)

    @property
    def shape(self) -> TypedShape:
        """The vertex types and relations of the model's graph."""
        metadata = self.architecture.shape
        assert metadata is not None
        return metadata

    def inputs(self) -> ModelInputs:
        """Return the supported inputs: rows by type, and tables in place if the first layer reads them."""
        a = self.architecture
        return ModelInputs(
            in_place=self._layer(0).takes_types and a.input_dropout == 0 and not self.adds_own(0)
        )

    def description(self) -> ModelDescription:
        raise UnsupportedModel(f"{type(self).__name__}, which has rows of several types")

    def forward(self, blocks: Sequence[Block], x: Rows) -> torch.Tensor:
        """Compute the targets' scores, [targets, classes], from the `TypedInput` of the first block."""
        return super().forward(blocks, self._convert_input(x))

    def layer(self, i: int, block: Block, x: Rows) -> torch.Tensor:
        """Compute one layer like `GNN.layer`; the first layer also accepts a `TypedInput`."""
        return super().layer(i, block, self._convert_input(x))

    def _convert_input(self, x: Rows) -> Rows:
        """Convert a heterogeneous input for the first layer; return any other input unchanged."""
        if isinstance(x, TypedInPlace):
            return self.input.in_place(x)
        if not isinstance(x, TypedInput):
            return x
        sources, a = self.input(x), self.architecture
        drops = self.training and a.input_dropout > 0
        if self._layer(0).takes_types and not drops and not self.adds_own(0):
            return sources  # type: ignore[no-any-return]
        return projected(sources, low_precision=a.low_precision)
