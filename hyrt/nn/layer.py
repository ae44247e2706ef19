"""Interface of a layer, for models and inference. Built-in and user-defined layers implement it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from hyrt.errors import UnsupportedModel
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.description import Product
from hyrt.nn.inputs import Rows
from hyrt.nn.layer_parts import LayerParts
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.sampling.block import Block


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory use of a layer, as counts of four-byte numbers.

    Counts the result and all intermediate arrays, but not the layer's input, its weights and the block.
    """

    row: int
    """Numbers per destination."""
    edge: int = 0
    """Numbers per edge."""


class Layer(nn.Module, ABC):
    """One layer of a `GNN`: combines source rows over a block and updates the destinations."""

    takes_relations: ClassVar[bool] = False
    """Whether the layer computes a separate function for each relation of a heterogeneous graph."""
    multiplies_weights: ClassVar[bool] = False
    """Whether the sums over relations are weighted by edge weights, if edges have weights."""
    takes_types: ClassVar[bool] = False
    """Whether the layer accepts `TypedSources`: rows of several types, not yet projected to one width."""
    edge_features: int = 0
    """Number of edge features that the layer reads; 0 if it reads none."""

    @abstractmethod
    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """Compute [num_dst, out] rows from [num_src, in] rows, followed by a ReLU if `relu`.

        Layer-wise inference passes `InPlace` rows; with sparse features it passes `Multiplied` rows to the
        first layer if `source_weight()` is not None.
        """

    @abstractmethod
    def footprint(self, *, multiplied: bool = False) -> Footprint:
        """Return the memory use of the layer; inference divides its work by it to fit a memory budget.

        Parameters
        ----------
        multiplied
            Whether the input is `Multiplied`.
        """

    @property
    def aggregation(self) -> Aggregation | None:
        """Return the aggregation before any weight, or None if it cannot be computed outside of the layer."""
        return None

    @property
    def adds_self_loops(self) -> bool:
        """Return whether the layer adds a self-loop to each vertex, which replaces self-loops in the data."""
        aggregation = self.aggregation
        return aggregation is not None and aggregation.reduce == "gcn"

    @property
    def gathers_rows(self) -> bool:
        """Return whether the layer gathers the source rows of a block if its input is `InPlace`."""
        return False

    def source_weight(self) -> torch.Tensor | None:
        """Return the weight [width, in] of source rows before aggregation; None if aggregation is first."""
        return None

    def parts(self, *, multiply_first: bool) -> LayerParts | None:
        """Return the layer's stages for full-graph training; None if the layer cannot be decomposed.

        Parameters
        ----------
        multiply_first
            Whether rows should be multiplied before they are gathered, if the layer supports both orders. The
            results are equal up to rounding.
        """
        return None

    def products(self, *, relu: bool) -> tuple[Product, ...]:
        """Return the products after the aggregation, for devices with their own kernels.

        Raises
        ------
        UnsupportedModel
            If the layer is not just an aggregation followed by products.
        """
        raise UnsupportedModel(type(self).__name__)
