"""GIN (Xu et al., 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class Gin(ModelKind):
    """Model kind that adds neighbours and own row, then applies two products with a norm in between."""

    best_form = "aggregated"
    # Sums over neighbours grow with the degree. Without a norm, training diverges at this learning rate.
    defaults: ClassVar = {"train.lr": 3e-3, "model.dropout": 0.5, "model.norm": "layer"}
    reads = ("hidden", "norm")
    costs_like = "gin"
    assumption = "a gin layer costs its aggregation and two products; its activation costs nothing"

    def layer(self, architecture: Architecture, in_features: int, out_features: int, *, last: bool) -> Layer:
        from hyrt.nn.layers import GinLayer

        return GinLayer(
            in_features,
            out_features,
            hidden=architecture.hidden,
            norm=architecture.norm == "layer",
            low_precision=architecture.low_precision,
        )
