"""R-GraphSAGE: GraphSAGE with one aggregation per relation."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class Rsage(ModelKind):
    """Model kind that adds each relation's neighbour mean and the own row, each times a matrix."""

    hetero = True
    best_form = "rows"
    defaults: ClassVar = {"train.lr": 1e-2, "train.weight_decay": 5e-4, "model.dropout": 0.5}
    reads = ()

    def layer(self, architecture: Architecture, in_features: int, out_features: int, *, last: bool) -> Layer:
        from hyrt.nn.hetero.layers import RsageLayer

        assert architecture.shape is not None
        return RsageLayer(
            in_features, out_features, architecture.shape, low_precision=architecture.low_precision
        )
