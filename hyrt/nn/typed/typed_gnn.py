"""A GNN over a typed graph."""

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
    """A GNN whose layers see rows of one width, which maps make of the rows of each type.

    Parameters
    ----------
    architecture
        What to build; `in_features` is the width that rows of all types are mapped to, and `shape` has the
        types.
    layers
        The layers; by default those of its kind.
    """

    def __init__(self, architecture: Architecture, layers: Sequence[Layer] | None = None) -> None:
        super().__init__(architecture, layers)
        shape = architecture.shape
        assert shape is not None, "a typed model is made for the types of a graph"
        self.input = InputMaps(shape, architecture.in_features)

    @property
    def shape(self) -> TypedShape:
        """The types and relations it is made for."""
        found = self.architecture.shape
        assert found is not None
        return found

    def inputs(self) -> ModelInputs:
        """Rows by type; and tables where they lie, where the first layer combines rows before all else."""
        a = self.architecture
        return ModelInputs(
            in_place=self._layer(0).takes_types and a.input_dropout == 0 and not self.adds_own(0)
        )

    def description(self) -> ModelDescription:
        raise UnsupportedModel(f"{type(self).__name__}, which has rows of several types")

    def forward(self, blocks: Sequence[Block], x: Rows) -> torch.Tensor:
        """Scores of the targets, [targets, classes], from the `TypedInput` of the first block's sources."""
        return super().forward(blocks, self._mapped(x))

    def layer(self, i: int, block: Block, x: Rows) -> torch.Tensor:
        """As `GNN.layer`; the first one takes a `TypedInput`, too."""
        return super().layer(i, block, self._mapped(x))

    def _mapped(self, x: Rows) -> Rows:
        """The input as the first layer takes it; anything else as it is."""
        if isinstance(x, TypedInPlace):
            return self.input.in_place(x)
        if not isinstance(x, TypedInput):
            return x
        sources, a = self.input(x), self.architecture
        drops = self.training and a.input_dropout > 0
        if self._layer(0).takes_types and not drops and not self.adds_own(0):
            return sources  # type: ignore[no-any-return]
        return projected(sources, low_precision=a.low_precision)
