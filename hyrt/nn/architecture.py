"""What makes a model: the settings of its kind and the widths of its data. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """All that a model is built from: equal architectures have parameters of equal names and shapes.

    Parameters
    ----------
    kind
        A name in the entry-point group `hyrt.models`.
    in_features, hidden, num_classes
        Widths of the input features, of the hidden layers and of the scores.
    layers
        Number of layers.
    aggregate
        How GraphSAGE combines neighbours.
    heads
        Attention heads of GAT.
    dropout, input_dropout
        Rates of the dropout between layers and on the input features.
    norm
        `layer` puts a LayerNorm after each hidden layer.
    residual
        Adds each hidden layer's input to its output.
    low_precision
        Multiplies in bfloat16.
    options
        Keyword arguments of the kind's own.
    """

    kind: str = "graphsage"
    in_features: int
    hidden: int = 128
    num_classes: int
    layers: int = 2
    aggregate: Literal["mean", "sum", "max"] = "mean"
    heads: int = 4
    dropout: float = 0.0
    input_dropout: float = 0.0
    norm: Literal["none", "layer"] = "none"
    residual: bool = False
    low_precision: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def widths(self) -> list[int]:
        """Columns of the input features and of each layer's result."""
        return [self.in_features, *[self.hidden] * (self.layers - 1), self.num_classes]
