"""Forms of a model's input features, and the interface by which a model declares the accepted forms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.graph.quantized.rows import to_numpy_dtype
from hyrt.nn.architecture import Aggregation
from hyrt.nn.description import overrides_only
from hyrt.nn.hetero.inputs import HeteroInPlaceInput, HeteroInput, HeteroSources
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.sampling.block import Block


@dataclass(frozen=True, slots=True)
class AggregatedFeatures:
    """Input features that the load stage has already aggregated for the first layer."""

    values: torch.Tensor
    """[num_dst, aggregation.width(f)] float32."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class InPlaceFeatures:
    """Whole feature matrix, for a block whose columns are vertex ids of the graph; gets no gradient."""

    values: NDArray[Any]
    """[V, f] float32, float64, float16 bits as uint16, or bfloat16 bits as int16."""

    __repr__ = short_repr


@dataclass(frozen=True, slots=True)
class MultipliedFeatures:
    """Sparse features times the layer's `source_weight()`, for a block read in place; gets no gradient.

    In a full graph a vertex is the source of many destinations, so each row is multiplied once in advance.
    """

    products: NDArray[np.float32]
    """[V, width] float32, product of each source row."""
    destination_rows: SparseRows
    """Rows of the destinations before the product."""

    __repr__ = short_repr


class ColumnShardedFeatures(ABC):
    """Input features whose columns are sharded over processes, so that only their products are available."""

    @abstractmethod
    def product(self, weight: torch.Tensor) -> torch.Tensor:
        """Return [n, out], the rows times the transposed weight [out, width]; differentiable by the weight.

        The rows are aggregated if the layer aggregates first; otherwise they are the source rows.
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
    """Return the feature rows of the destinations, [num_dst, f].

    Raises TypeError for aggregated rows, rows sharded by columns, and rows of several types.
    """
    if isinstance(x, HeteroInput | HeteroInPlaceInput | HeteroSources):
        raise TypeError("rows of several types have no common width before they are mapped")
    if isinstance(x, AggregatedFeatures | ColumnShardedFeatures):
        raise TypeError("the destinations' own rows are not kept where the load stage aggregates")
    if isinstance(x, MultipliedFeatures):
        return x.destination_rows
    if isinstance(x, SparseRows):
        return x.head(block.num_dst)
    if isinstance(x, InPlaceFeatures):
        rows = to_numpy_dtype(x.values[block.destinations])
        return torch.from_numpy(rows.astype(np.float32) if rows.dtype == np.float16 else rows)
    return x[: block.num_dst]


def source_rows(x: Rows) -> torch.Tensor | NDArray[Any]:
    """Return dense source rows [num_src, f] as input of `hyrt.nn.operators.aggregate.aggregate`.

    Raises TypeError for aggregated or multiplied rows, rows sharded by columns, and rows of several types.
    """
    if isinstance(x, HeteroInput | HeteroInPlaceInput | HeteroSources):
        raise TypeError("rows of several types have no common width before they are mapped")
    if isinstance(x, AggregatedFeatures | MultipliedFeatures | ColumnShardedFeatures):
        raise TypeError("the rows of the sources are needed here, not their aggregate or product")
    if isinstance(x, InPlaceFeatures):
        return x.values
    return x.to_dense() if isinstance(x, SparseRows) else x


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Forms of input features that a model accepts in addition to gathered rows."""

    aggregation: Aggregation | None = None
    """Aggregation that a loader may compute for the first layer (`AggregatedFeatures`); None for none."""
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
    """Return the forms of input features that a model accepts; only gathered rows if it declares no others.

    A subclass that overrides `forward` but not `inputs` is treated as if it declared no others.
    """
    if isinstance(model, DeclaresInputs) and not overrides_only(type(model), "forward", "inputs"):
        return model.inputs()
    return ModelInputs()
