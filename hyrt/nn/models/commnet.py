"""CommNet (Sukhbaatar et al., 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class CommNet(ModelKind):
    """Model kind that adds the mean of the neighbours and the vertex's own row, each times a weight."""

    best_form = "rows"
    defaults: ClassVar = {
        "train.lr": 3e-3,
        "model.dropout": 0.2,
        "model.norm": "layer",
        "model.residual": True,
    }
    reads = ()

    def products(self, options: Mapping[str, Any]) -> tuple[float, float]:
        """Count one product per source (for the mean) and one per destination."""
        return 1, 1

    def layer(self, architecture: Architecture, in_features: int, out_features: int, *, last: bool) -> Layer:
        from hyrt.nn.message_passing.layers import CommNetLayer

        return CommNetLayer(in_features, out_features, low_precision=architecture.low_precision)
