"""GCN (Kipf and Welling, 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class Gcn(ModelKind):
    """Model kind that sums the neighbours and a self-loop, weighted by degrees."""

    best_form = "aggregated"
    # Values of Kipf and Welling 2017, section 5.2.
    defaults: ClassVar = {"train.lr": 1e-2, "train.weight_decay": 5e-4, "model.dropout": 0.5}
    reads = ()
    costs_like = "gcn"

    def layer(self, architecture: Architecture, in_features: int, out_features: int, *, last: bool) -> Layer:
        from hyrt.nn.layers import GcnLayer

        return GcnLayer(in_features, out_features, low_precision=architecture.low_precision)
