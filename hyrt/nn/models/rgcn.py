"""R-GCN (Schlichtkrull et al., ESWC 2018)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hyrt.errors import ConfigError
from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class Rgcn(ModelKind):
    """Model kind that sums each relation's neighbour mean times the relation's matrix, and adds the own row.

    With `model.options={bases: n}`, the relations' matrices are linear combinations of n shared matrices.
    With `{blocks: n}`, they are block-diagonal with n blocks in layers whose widths are multiples of n.
    """

    hetero = True
    best_form = "rows"
    defaults: ClassVar = {"train.lr": 1e-2, "train.weight_decay": 5e-4, "model.dropout": 0.5}
    reads = ()

    def layer(
        self,
        architecture: Architecture,
        in_features: int,
        out_features: int,
        *,
        last: bool,
        bases: int = 0,
        blocks: int = 0,
    ) -> Layer:
        from hyrt.nn.hetero.layers import RgcnLayer

        for name, count in (("bases", bases), ("blocks", blocks)):
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise ConfigError(f"model.options has {name}={count!r}: use an integer of at least 1")
        if bases and blocks:
            raise ConfigError("model.options sets both bases and blocks: set only one of them")
        if blocks and not last and (in_features % blocks or out_features % blocks):
            raise ConfigError(
                f"model.options has blocks={blocks}, which does not divide both layer widths, {in_features} "
                f"and model.hidden={out_features}: choose another number of blocks, or another model.hidden"
            )
        # If the number of classes is not a multiple of `blocks`, the last layer has full matrices.
        fits = not (in_features % blocks or out_features % blocks) if blocks else False
        assert architecture.shape is not None
        return RgcnLayer(
            in_features,
            out_features,
            architecture.shape,
            bases=bases,
            blocks=blocks if fits else 0,
            low_precision=architecture.low_precision,
        )
