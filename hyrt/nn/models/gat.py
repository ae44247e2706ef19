"""GAT (Velickovic et al., 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hyrt.errors import ConfigError
from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class Gat(ModelKind):
    """Model kind with attention over neighbours; heads are concatenated, or averaged in the last layer.

    `model.options={out_heads: n}` sets the number of heads of the last layer. By default, it has as many
    heads as the other layers. Velickovic et al. use one if there are few labels (section 3.3).
    """

    # Attention dropout is used as in Velickovic et al. 2018, section 3.3.
    defaults: ClassVar = {
        "train.lr": 1e-2,
        "train.weight_decay": 5e-4,
        "model.dropout": 0.5,
        "model.attention_dropout": 0.6,
    }
    reads = ("heads", "attention_dropout")
    costs_like = "gat"
    assumption = "a gat layer reads a row for each edge and head; scores and softmax cost nothing"

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
        out_heads: int | None = None,
    ) -> Layer:
        from hyrt.nn.layers import GatLayer

        heads = architecture.heads
        if out_heads is not None:
            if isinstance(out_heads, bool) or not isinstance(out_heads, int) or out_heads < 1:
                raise ConfigError(
                    f"model.options has out_heads={out_heads!r}: use a number of heads of at least 1"
                )
            heads = out_heads if last else heads
        width = out_features if last else out_features // heads
        return GatLayer(
            in_features,
            width,
            heads,
            average=last,
            dropout=architecture.attention_dropout,
            low_precision=architecture.low_precision,
        )
