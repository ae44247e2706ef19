"""GINE (Hu et al., 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hyrt.nn.models.model_kind import ModelKind, check_edge_width

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class Gine(ModelKind):
    """GIN whose message is the ReLU of the neighbour's row plus a product of the edge features.

    `model.options={edge_features: d}` defaults to the width of the dataset's edge features.
    """

    best_form = "rows"
    defaults: ClassVar = {"train.lr": 3e-3, "model.dropout": 0.5, "model.norm": "layer"}
    reads = ("hidden", "norm")

    def layer(
        self,
        architecture: Architecture,
        in_features: int,
        out_features: int,
        *,
        last: bool,
        edge_features: int = 0,
    ) -> Layer:
        from hyrt.nn.message_passing.layers import GineLayer

        return GineLayer(
            in_features,
            out_features,
            check_edge_width("gine", edge_features),
            hidden=architecture.hidden,
            norm=architecture.norm == "layer",
            low_precision=architecture.low_precision,
        )
