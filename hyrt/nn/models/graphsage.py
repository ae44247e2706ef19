"""GraphSAGE (Hamilton et al., 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class GraphSage(ModelKind):
    """Model kind that concatenates the own row and the mean, sum or maximum of the neighbours."""

    best_form = "aggregated"
    defaults: ClassVar = {"train.lr": 1e-2, "train.weight_decay": 5e-4, "model.dropout": 0.5}
    reads = ("aggregate",)
    costs_like = "graphsage"

    def layer(self, architecture: Architecture, in_features: int, out_features: int, *, last: bool) -> Layer:
        from hyrt.nn.layers import SageLayer

        return SageLayer(
            in_features,
            out_features,
            reduce=architecture.aggregate,
            low_precision=architecture.low_precision,
        )
