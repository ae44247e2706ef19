"""What a model and inference ask of a layer; the built-in layers and a user's own implement it."""

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
    """How many numbers of four bytes stay in memory while a layer is applied.

    Counted are the result and all intermediate arrays; not the layer's input, its weights and the block.
    """

    row: int
    """Numbers for each destination."""
    edge: int = 0
    """Numbers for each edge."""


class Layer(nn.Module, ABC):
    """One layer of a `GNN`: combines source rows over a block and updates the destinations."""

    takes_relations: ClassVar[bool] = False
    """Whether it computes a function for each relation of a typed graph."""
    multiplies_weights: ClassVar[bool] = False
    """Whether its sums over relations multiply by weights of edges, where these have some."""
    takes_types: ClassVar[bool] = False
    """Whether it takes `TypedSources`, rows of several types that have not been mapped to one width."""
    edge_features: int = 0
    """How many features of an edge it looks at; 0 where it does not."""

    @abstractmethod
    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """[num_dst, out] from [num_src, in] rows, through a ReLU where `relu` says so.

        Layer-wise inference gives a layer `InPlace` rows, and the first one of a model over sparse features
        `Multiplied` rows where `source_weight()` is not None.
        """

    @abstractmethod
    def footprint(self, *, multiplied: bool = False) -> Footprint:
        """What applying the layer keeps in memory, from which inference cuts its work to a budget.

        Parameters
        ----------
        multiplied
            Whether the rows come as `Multiplied`.
        """

    @property
    def aggregation(self) -> Aggregation | None:
        """What the layer does to its rows before any weight, where that can be done apart from it."""
        return None

    @property
    def gathers_rows(self) -> bool:
        """Whether the layer gathers the rows of a block's sources where it is given `InPlace` rows."""
        return False

    def source_weight(self) -> torch.Tensor | None:
        """[width, in] weights of source rows before they are combined; None where combining comes first."""
        return None

    def parts(self, *, multiply_first: bool) -> LayerParts | None:
        """The layer taken apart, for training on whole graphs; None where that is not possible.

        Parameters
        ----------
        multiply_first
            Whether rows should be multiplied before they are gathered, where the layer can do either; what it
            computes is the same up to rounding.
        """
        return None

    def products(self, *, relu: bool) -> tuple[Product, ...]:
        """What is multiplied after the aggregation, for devices with kernels of their own.

        Raises
        ------
        UnsupportedModel
            If the layer is more than an aggregation and products.
        """
        raise UnsupportedModel(type(self).__name__)
