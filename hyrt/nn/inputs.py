"""The forms in which input features reach a first layer, and how a model says which of them it takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.narrow.narrow_rows import as_numbers
from hyrt.nn.aggregation import Aggregation
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.overridden import is_newer
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.nn.typed.typed_input import TypedInPlace, TypedInput, TypedSources
from hyrt.quantities import one_line
from hyrt.sampling.block import Block


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Input features that the load stage has aggregated already, for the first layer to update."""

    values: torch.Tensor
    """[num_dst, aggregation.width(f)] float32."""

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class InPlace:
    """A whole feature matrix that a block read in place refers to; takes no gradient."""

    values: NDArray[Any]
    """[V, f] float32, float64, the bits of float16 as uint16, or those of bfloat16 as int16."""

    __repr__ = one_line


@dataclass(frozen=True, slots=True)
class Multiplied:
    """Sparse features times the layer's `source_weight()`, for a block read in place; takes no gradient.

    Over a whole graph a vertex is the source of many destinations: this way its row is multiplied once.
    """

    products: NDArray[np.float32]
    """[V, width] float32, the product of each source."""
    own: SparseRows
    """The destinations' rows, not multiplied."""

    __repr__ = one_line


class DividedRows(ABC):
    """What a first layer multiplies, its columns divided over processes: only products are there."""

    @abstractmethod
    def product(self, weight: torch.Tensor) -> torch.Tensor:
        """[n, out], the rows times weight' ([out, width]); differentiable with respect to the weight.

        The rows are aggregated where the layer does that first, and else those of the sources.
        """


Rows = (
    torch.Tensor
    | SparseRows
    | Aggregated
    | InPlace
    | Multiplied
    | DividedRows
    | TypedInput
    | TypedInPlace
    | TypedSources
)


def own_rows(block: Block | TensorBlock, x: Rows) -> torch.Tensor | SparseRows:
    """The destinations' rows of the features, [num_dst, f].

    Raises
    ------
    TypeError
        If they were aggregated and are not there any more, or are divided.
    """
    if isinstance(x, TypedInput | TypedInPlace | TypedSources):
        raise TypeError("rows of several types have no common width before they are mapped")
    if isinstance(x, Aggregated | DividedRows):
        raise TypeError("the destinations' own rows are not kept where the load stage aggregates")
    if isinstance(x, Multiplied):
        return x.own
    if isinstance(x, SparseRows):
        return x.head(block.num_dst)
    if isinstance(x, InPlace):
        rows = as_numbers(x.values[block.destinations])
        return torch.from_numpy(rows.astype(np.float32) if rows.dtype == np.float16 else rows)
    return x[: block.num_dst]


def source_rows(x: Rows) -> torch.Tensor | NDArray[Any]:
    """Dense rows of the sources, [num_src, f], as `hyrt.nn.operators.aggregate.aggregate` takes them.

    Raises
    ------
    TypeError
        If they are not there any more: aggregated, multiplied, or divided.
    """
    if isinstance(x, TypedInput | TypedInPlace | TypedSources):
        raise TypeError("rows of several types have no common width before they are mapped")
    if isinstance(x, Aggregated | Multiplied | DividedRows):
        raise TypeError("the rows of the sources are needed here, not their aggregate or product")
    if isinstance(x, InPlace):
        return x.values
    return x.dense() if isinstance(x, SparseRows) else x


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The forms of input features that a model takes besides gathered rows."""

    aggregation: Aggregation | None = None
    """What the first layer does to raw features before any weight, where a loader may do it for the layer
    (`Aggregated`); None where it may not."""
    in_place: bool = False
    """Whether the first layer reads the whole matrix in place of gathered rows (`InPlace`)."""
    sparse: bool = False
    """Whether it takes `SparseRows`."""
    rather_rows: bool = False
    """Whether gathered rows cost the first layer less than the whole matrix, of which it gathers them itself:
    so it is for sampled mini-batches, not for a whole graph."""


class DeclaresInputs(ABC):
    """A model that takes more forms of input features than gathered rows."""

    @abstractmethod
    def inputs(self) -> ModelInputs:
        """The forms it takes."""


def inputs_of(model: torch.nn.Module) -> ModelInputs:
    """The forms of input features a model takes; gathered rows alone for one that declares nothing.

    A class that is derived from one that declares them, and has a `forward` of its own, declares nothing.
    """
    if isinstance(model, DeclaresInputs) and not is_newer(type(model), "forward", "inputs"):
        return model.inputs()
    return ModelInputs()
