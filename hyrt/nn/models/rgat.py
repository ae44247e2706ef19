"""R-GAT: attention within each relation (Busbridge et al., 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class Rgat(ModelKind):
    """Model kind that sums attention within each relation over all relations, and adds the own row.

    Hidden layers concatenate their heads, and the last layer averages them. If edges have features or
    weights, attention depends on them; `model.options={edge_features: d}` defaults to the width of the
    dataset's edge features.
    """

    hetero = True
    best_form = "rows"
    defaults: ClassVar = {"train.lr": 5e-3, "train.weight_decay": 5e-4, "model.dropout": 0.5}
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
        from hyrt.nn.hetero.layers import RgatLayer

        assert architecture.shape is not None
        return RgatLayer(
            in_features,
            out_features if last else out_features // architecture.heads,
            architecture.heads,
            architecture.shape,
            edge_features=edge_features,
            average=last,
            low_precision=architecture.low_precision,
        )
