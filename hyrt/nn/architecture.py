"""What makes a model: the settings of its kind and the widths of its data. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hyrt.nn.typed.typed_shape import TypedShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """All that a model is built from: equal architectures have parameters of equal names and shapes."""

    kind: str = "graphsage"
    """A name in the entry-point group `hyrt.models`."""
    in_features: int
    hidden: int = 128
    num_classes: int
    """`in_features`, `hidden` and `num_classes`: widths of the input features, of the hidden layers and of
    the scores."""
    layers: int = 2
    """Number of layers."""
    aggregate: Literal["mean", "sum", "max"] = "mean"
    """How GraphSAGE combines neighbours."""
    heads: int = 4
    """Attention heads of GAT."""
    dropout: float = 0.0
    input_dropout: float = 0.0
    """`dropout` and `input_dropout`: rates of the dropout between layers and on the input features."""
    attention_dropout: float = 0.0
    """The rate of the dropout of GAT's attention weights."""
    norm: Literal["none", "layer"] = "none"
    """`layer` puts a LayerNorm after each hidden layer."""
    residual: bool = False
    """Adds each hidden layer's input to its output."""
    low_precision: bool = False
    """Multiplies in bfloat16."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the kind's own."""
    shape: TypedShape | None = None
    """The types and relations of a typed graph, whose rows are mapped to `in_features` columns; None for
    others."""

    @property
    def widths(self) -> list[int]:
        """Columns of the input features and of each layer's result."""
        return [self.in_features, *[self.hidden] * (self.layers - 1), self.num_classes]
