"""Parameters of a model, types of its graph, and aggregation of a layer.

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_choice, check_flag, check_number


@dataclass(frozen=True)
class GraphMetadata:
    """Vertex types and relations of a graph, by index."""

    types: tuple[str, ...]
    """Names of the vertex types."""
    counts: tuple[int, ...]
    """Number of vertices per type. Vertex ids are consecutive over all types."""
    widths: tuple[int | None, ...]
    """Number of feature columns per type; None for a type without features, which has embeddings."""
    relations: tuple[tuple[int, str, int], ...]
    """Source type, name and destination type of each relation."""

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Index of the first vertex of each type, [T + 1] int64."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)

    @property
    def learned_types(self) -> list[int]:
        """Indices of the types with learned embeddings."""
        return [number for number, width in enumerate(self.widths) if width is None]

    @property
    def num_relations(self) -> int:
        return len(self.relations)


Reduce = Literal["mean", "sum", "gcn", "max"]
SelfPath = Literal["none", "add", "concat"]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """Aggregation of a layer, from which operators and kernel devices derive their implementation.

    Raises
    ------
    ValueError
        If `reduce` or `self_path` is unknown, or if `max` is combined with the self path `add`.
    """

    reduce: Reduce
    """`mean`: mean over the sampled neighbours. `sum`: if k of d neighbours are sampled, each is weighted by
    d / k, so that the expected value is the sum over all neighbours. `gcn`: sum weighted by 1 / sqrt((d_i +
    1)(d_j + 1)) with full-graph in-degrees d. `max`: element-wise maximum. If edges have weights w, `sum`
    adds w x, `mean` divides the sum of w x by the full graph's sum of w, and `gcn` multiplies by w and uses
    sums of w as in-degrees; `max` ignores the weights.
    """
    self_path: SelfPath
    """Use of the destination's own row. `none`: not used. `add`: added after multiplication by 1 + epsilon
    (for `gcn`, as a self-loop with weight 1 / (d_i + 1)). `concat`: placed before the aggregate, so the layer
    has 2 f inputs.
    """
    epsilon: float = 0.0
    """Additional weight of the self row for `add`; ignored by `gcn`."""
    weighted: bool = True
    """Whether edge weights are used."""

    def __post_init__(self) -> None:
        check_choice("reduce", self.reduce, get_args(Reduce))
        check_choice("self_path", self.self_path, get_args(SelfPath))
        check_number("epsilon", self.epsilon)
        check_flag("weighted", self.weighted)
        if self.reduce == "max" and self.self_path == "add":
            raise ValueError(
                "reduce='max' cannot be combined with self_path='add': use self_path='none' or 'concat'"
            )

    def width(self, features: int) -> int:
        """Return the number of columns of the result for input rows with `features` columns."""
        return 2 * features if self.self_path == "concat" else features

    def columns(self, features: int) -> tuple[int, int | None]:
        """Return the first result column of the aggregate and, for `concat`, that of the self row."""
        return (features, 0) if self.self_path == "concat" else (0, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Hyperparameters that define a model's structure. Models with equal architectures have the same
    parameter names and shapes.
    """

    kind: str = "graphsage"
    """Name of the model kind in the entry-point group `hyrt.models`."""
    in_features: int
    hidden: int = 128
    num_classes: int
    """Width of the scores. `in_features`: width of the input. `hidden`: width of the hidden layers."""
    layers: int = 2
    aggregate: Literal["mean", "sum", "max"] = "mean"
    """Reduction over the neighbours in GraphSAGE."""
    heads: int = 4
    """Number of attention heads in GAT."""
    dropout: float = 0.0
    input_dropout: float = 0.0
    """Dropout rate of the input features; `dropout` is the rate of the hidden layers' outputs."""
    attention_dropout: float = 0.0
    """Dropout rate of GAT's attention weights."""
    norm: Literal["none", "layer"] = "none"
    """Normalization after each hidden layer: `none`, or `layer` for a LayerNorm."""
    residual: bool = False
    """Whether the input of each hidden layer is added to its output."""
    low_precision: bool = False
    """Whether matrix products are computed in bfloat16."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments that only this model kind accepts."""
    shape: GraphMetadata | None = None
    """Vertex types and relations of a heterogeneous graph; None for homogeneous graphs."""

    @property
    def widths(self) -> list[int]:
        """Return the widths of the input features and of each layer's output."""
        return [self.in_features, *[self.hidden] * (self.layers - 1), self.num_classes]
