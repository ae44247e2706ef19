"""Architecture of a model: the settings of its kind and the widths of its data. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hyrt.nn.typed.typed_shape import TypedShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Everything that a model is built from. Equal architectures have equal parameter names and shapes."""

    kind: str = "graphsage"
    """Name in the entry-point group `hyrt.models`."""
    in_features: int
    hidden: int = 128
    num_classes: int
    """`in_features`, `hidden`, `num_classes`: widths of the input features, the hidden layers and the
    scores."""
    layers: int = 2
    """Number of layers."""
    aggregate: Literal["mean", "sum", "max"] = "mean"
    """Reduction over neighbours in GraphSAGE."""
    heads: int = 4
    """Number of attention heads in GAT."""
    dropout: float = 0.0
    input_dropout: float = 0.0
    """`dropout`, `input_dropout`: dropout rates between layers and on the input features."""
    attention_dropout: float = 0.0
    """Dropout rate of GAT's attention weights."""
    norm: Literal["none", "layer"] = "none"
    """`layer`: a LayerNorm after each hidden layer."""
    residual: bool = False
    """Whether each hidden layer's input is added to its output."""
    low_precision: bool = False
    """Whether matrix products are computed in bfloat16."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments that are specific to the kind."""
    shape: TypedShape | None = None
    """Vertex types and relations of a heterogeneous graph, whose rows are projected to `in_features` columns;
    None for homogeneous graphs."""

    @property
    def widths(self) -> list[int]:
        """Return the widths of the input features and of each layer's output."""
        return [self.in_features, *[self.hidden] * (self.layers - 1), self.num_classes]
