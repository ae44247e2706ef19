"""GAT (Velickovic et al., 2018) with edge features."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hyrt.nn.models.model_kind import ModelKind, check_edge_width

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class EdgeGat(ModelKind):
    """GAT with attention that also depends on edge features. It has no attention dropout.

    `model.options={edge_features: d}` defaults to the width of the dataset's edge features.
    """

    best_form = "rows"
    defaults: ClassVar = {"train.lr": 1e-2, "train.weight_decay": 5e-4, "model.dropout": 0.5}
    reads = ("heads",)

    def check(self, *, hidden: int, heads: int) -> None:
        if hidden % heads:
            raise ValueError(
                f"model.hidden={hidden} is not a multiple of model.heads={heads}: set "
                f"model.hidden={-(-hidden // heads) * heads}, or change model.heads"
            )

    def layer(
        self,
        architecture: Architecture,
        in_features: int,
        out_features: int,
        *,
        last: bool,
        edge_features: int = 0,
    ) -> Layer:
        from hyrt.nn.message_passing.layers import EdgeAttentionLayer

        heads = architecture.heads
        return EdgeAttentionLayer(
            in_features,
            out_features if last else out_features // heads,
            heads,
            check_edge_width("edge-gat", edge_features),
            average=last,
            low_precision=architecture.low_precision,
        )
