"""G-GCN (Bresson and Laurent, 2017; NeuGraph, 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class Ggcn(ModelKind):
    """Model kind that multiplies neighbours by gates that depend on both endpoints, and adds the own row."""

    best_form = "rows"
    # The norm bounds the sums over neighbours, which grow with the degree.
    defaults: ClassVar = {
        "train.lr": 3e-3,
        "model.dropout": 0.2,
        "model.norm": "layer",
        "model.residual": True,
    }
    reads = ()

    def products(self, options: Mapping[str, Any]) -> tuple[float, float]:
        """Count a message and a gate term per source, and the own row and a gate term per destination."""
        return 2, 2

    def layer(self, architecture: Architecture, in_features: int, out_features: int, *, last: bool) -> Layer:
        from hyrt.nn.message_passing.layers import GatedLayer

        return GatedLayer(in_features, out_features, low_precision=architecture.low_precision)
