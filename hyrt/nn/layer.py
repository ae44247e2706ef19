"""Interface of a layer: the forms of its input, and its stages Scatter, Gather and ApplyVertex."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hyrt.errors import UnsupportedModelError
from hyrt.formatting import short_repr
from hyrt.graph.quantized.rows import to_numpy_dtype
from hyrt.nn.architecture import Aggregation
from hyrt.nn.description import Product, overrides_only
from hyrt.nn.hetero.inputs import HeteroInPlaceInput, HeteroInput, HeteroSources
from hyrt.nn.message_passing.gather import SagaGather
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.operators.tensor_ops import TensorBlock
from hyrt.sampling.block import Block


@dataclass(frozen=True, slots=True)
class AggregatedFeatures:
    """Input of the first layer that the load stage has already aggregated."""

    values: torch.Tensor
    """Aggregated rows [num_dst, aggregation.width(f)], float32."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class InPlaceFeatures:
    """Input that is the whole feature matrix; the block's columns are vertex ids. It gets no gradient."""

    values: NDArray[Any]
    """Features [V, f]: float32, float64, float16 as uint16 bits, or bfloat16 as int16 bits."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class MultipliedFeatures:
    """Sparse features times the layer's `source_weight()`, for a block read in place, without gradient.

    In a full graph, a vertex is the source of many destinations, so each row is multiplied once, in advance.
    """

    products: NDArray[np.float32]
    """Product of each source row with the weight, [V, width] float32."""
    destination_rows: SparseRows
    """Destination rows before the multiplication."""

    __repr__ = short_repr


class ColumnShardedFeatures(ABC):
    """Input features whose columns are sharded over processes: only products of them are available."""

    @abstractmethod
    def product(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the product [n, out] of the rows and the weight [out, width]; differentiable by the weight.

        The rows are aggregated rows if the layer aggregates before it multiplies, and source rows otherwise.
        """


Rows = (
    torch.Tensor
    | SparseRows
    | AggregatedFeatures
    | InPlaceFeatures
    | MultipliedFeatures
    | ColumnShardedFeatures
    | HeteroInput
    | HeteroInPlaceInput
    | HeteroSources
)


def destination_rows(block: Block | TensorBlock, x: Rows) -> torch.Tensor | SparseRows:
    """Return the feature rows [num_dst, f] of the destinations.

    Raises TypeError for aggregated rows, column-sharded rows, and rows of several types.
    """
    if isinstance(x, HeteroInput | HeteroInPlaceInput | HeteroSources):
        raise TypeError("rows of several types have no common width before their projection")
    if isinstance(x, AggregatedFeatures | ColumnShardedFeatures):
        raise TypeError(
            "the destinations' rows are unavailable, because the load stage has aggregated the inputs"
        )
    if isinstance(x, MultipliedFeatures):
        return x.destination_rows
    if isinstance(x, SparseRows):
        return x.head(block.num_dst)
    if isinstance(x, InPlaceFeatures):
        rows = to_numpy_dtype(x.values[block.destinations])
        return torch.from_numpy(rows.astype(np.float32) if rows.dtype == np.float16 else rows)
    return x[: block.num_dst]


def source_rows(x: Rows) -> torch.Tensor | NDArray[Any]:
    """Return dense source rows [num_src, f] as an input of `hyrt.nn.operators.aggregate.aggregate`.

    Raises TypeError for aggregated, multiplied or column-sharded rows, and for rows of several types.
    """
    if isinstance(x, HeteroInput | HeteroInPlaceInput | HeteroSources):
        raise TypeError("rows of several types have no common width before their projection")
    if isinstance(x, AggregatedFeatures | MultipliedFeatures | ColumnShardedFeatures):
        raise TypeError("source rows are needed here, not their aggregate or product")
    if isinstance(x, InPlaceFeatures):
        return x.values
    return x.to_dense() if isinstance(x, SparseRows) else x


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Forms of input features that a model accepts in addition to gathered rows."""

    aggregation: Aggregation | None = None
    """First layer's aggregation that a loader may compute (`AggregatedFeatures`), or None."""
    in_place: bool = False
    """Whether the first layer accepts `InPlaceFeatures`."""
    sparse: bool = False
    """Whether the first layer accepts `SparseRows`."""
    prefers_gathered_rows: bool = False
    """Whether gathered rows are cheaper than `InPlaceFeatures` in sampled mini-batches."""


class DeclaresInputs(ABC):
    """Interface of models that accept more forms of input features than gathered rows."""

    @abstractmethod
    def inputs(self) -> ModelInputs:
        """Return the accepted forms of input features."""


def get_model_inputs(model: torch.nn.Module) -> ModelInputs:
    """Return the forms of input features that a model accepts; by default, only gathered rows.

    A subclass that overrides `forward` but not `inputs` accepts only gathered rows.
    """
    if isinstance(model, DeclaresInputs) and not overrides_only(type(model), "forward", "inputs"):
        return model.inputs()
    return ModelInputs()


@dataclass(frozen=True, slots=True)
class AttentionSum:
    """Gather that sums messages with softmax weights over the edges of a vertex and its self-loop (GAT).

    A vertex sends its row [n, heads * width] and two scores [n, heads]: one as a source, one as a
    destination. The score of an edge is LeakyReLU(source score + destination score).
    """

    heads: int
    slope: float = 0.2
    dropout: float = 0.0
    """Dropout rate of the softmax weights in training."""


class ApplyVertex(Protocol):
    """Row-wise function that computes the layer's result from the gathered rows."""

    def __call__(
        self, gathered: torch.Tensor, self_rows: torch.Tensor | SparseRows | None, /, *, relu: bool
    ) -> torch.Tensor:
        """Compute [n, out] from gathered rows and, if `reads_self`, from the input rows [n, in]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """Scatter, Gather and ApplyVertex of a layer (NeuGraph, section 2.2).

    Only the gather reads edges. The other stages are row-wise: they can be computed in chunks of any size,
    and recomputed if that is cheaper than saving their results.
    """

    scatter: Callable[[torch.Tensor | SparseRows], tuple[torch.Tensor, ...]] | None
    """Function that maps rows [n, in] to messages; None if the rows themselves are the messages."""
    message_widths: tuple[int, ...]
    gather: Aggregation | AttentionSum | SagaGather
    """Combination of messages along edges. The self path of an `Aggregation` is `none` or `add`."""
    gathered_width: int
    apply: ApplyVertex
    reads_self: bool = False
    """Whether `apply` also reads the input rows of the vertices."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory use of a layer, counted in four-byte numbers.

    The counts include the result and all intermediate arrays, but not the layer's input, weights and block.
    """

    row: int
    """Four-byte numbers per destination."""
    edge: int = 0
    """Four-byte numbers per edge."""


class Layer(nn.Module, ABC):
    """Layer of a `GNN`, which combines source rows over a block and updates the destinations."""

    takes_relations: ClassVar[bool] = False
    """Whether the layer computes a separate function for each relation of a heterogeneous graph."""
    multiplies_weights: ClassVar[bool] = False
    """Whether edge weights, if there are any, multiply the terms of the sums over relations."""
    takes_types: ClassVar[bool] = False
    """Whether the layer accepts `HeteroSources`: rows of several types with separate widths."""
    edge_features: int = 0
    """Number of edge features that the layer reads; 0 if it reads none."""

    @abstractmethod
    def forward(self, block: Block | TensorBlock, x: Rows, *, relu: bool = False) -> torch.Tensor:
        """Compute rows [num_dst, out] from rows [num_src, in]; apply a ReLU at the end if `relu`.

        Layer-wise inference passes `InPlaceFeatures`. If the features are sparse and `source_weight()` is not
        None, it passes `MultipliedFeatures` to the first layer.
        """

    @abstractmethod
    def footprint(self, *, multiplied: bool = False) -> Footprint:
        """Return the memory use of the layer, from which inference derives chunk sizes for its memory budget.

        Parameters
        ----------
        multiplied
            Whether the input is `MultipliedFeatures`.
        """

    @property
    def aggregation(self) -> Aggregation | None:
        """Return the aggregation of unweighted source rows; None if only the layer can compute it."""
        return None

    @property
    def adds_self_loops(self) -> bool:
        """Return whether the layer adds self-loops, which replace self-loops in the data."""
        aggregation = self.aggregation
        return aggregation is not None and aggregation.reduce == "gcn"

    @property
    def gathers_rows(self) -> bool:
        """Return whether the layer copies the source rows of a block if its input is `InPlaceFeatures`."""
        return False

    def source_weight(self) -> torch.Tensor | None:
        """Return the weight [width, in] applied before aggregation; None if aggregation is first."""
        return None

    def parts(self, *, multiply_first: bool) -> LayerParts | None:
        """Return the layer's stages for full-graph training; None if the layer cannot be decomposed.

        Parameters
        ----------
        multiply_first
            Whether to multiply rows before the gather, if the layer supports both orders; both orders give
            equal results up to rounding.
        """
        return None

    def products(self, *, relu: bool) -> tuple[Product, ...]:
        """Return the products after the aggregation, for devices with their own kernels.

        Raises
        ------
        UnsupportedModelError
            If the layer is not just an aggregation followed by products.
        """
        raise UnsupportedModelError(type(self).__name__)
