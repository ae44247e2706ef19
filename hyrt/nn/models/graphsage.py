"""GraphSAGE (Hamilton et al., 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class GraphSage(ModelKind):
    """Neighbours combined by mean, sum or maximum, beside the own row."""

    best_form = "aggregated"
    costs_like = "graphsage"

    def layer(self, architecture: Architecture, in_features: int, out_features: int, *, last: bool) -> Layer:
        from hyrt.nn.layers import SageLayer

        return SageLayer(
            in_features,
            out_features,
            reduce=architecture.aggregate,
            low_precision=architecture.low_precision,
        )
