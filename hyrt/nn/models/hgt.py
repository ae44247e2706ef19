"""HGT: the heterogeneous graph transformer (Hu et al., WWW 2020)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class Hgt(ModelKind):
    """Model kind with attention over all edges into a vertex, and maps per vertex type and relation."""

    hetero = True
    best_form = "rows"
    defaults: ClassVar = {"train.lr": 1e-3, "train.weight_decay": 5e-4, "model.dropout": 0.2}
    reads = ("heads",)

    def check(self, *, hidden: int, heads: int) -> None:
        if hidden % heads:
            raise ValueError(
                f"model.hidden={hidden} is not a multiple of model.heads={heads}: set "
                f"model.hidden={-(-hidden // heads) * heads}, or change model.heads"
            )

    def layer(self, architecture: Architecture, in_features: int, out_features: int, *, last: bool) -> Layer:
        from hyrt.nn.hetero.layers import HgtLayer

        assert architecture.shape is not None
        return HgtLayer(
            in_features,
            out_features,
            architecture.heads,
            architecture.shape,
            # The number of classes is arbitrary, so the keys and values of the last layer have the width of
            # its input.
            hidden=in_features if last else out_features,
            low_precision=architecture.low_precision,
        )
