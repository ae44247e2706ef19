"""GG-NN (Li et al., 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class Ggnn(ModelKind):
    """Model kind that passes the sum of the neighbours' products to a gated recurrent unit.

    With `model.options={edge_types: n}`, each of n edge types has a separate weight.
    """

    best_form = "rows"
    defaults: ClassVar = {
        "train.lr": 3e-3,
        "model.dropout": 0.2,
        "model.norm": "layer",
    }
    reads = ()

    def products(self, options: Mapping[str, Any]) -> tuple[float, float]:
        """Count a message per source and edge type, and three gates of the sum and of the vertex's row."""
        return max(1, options.get("edge_types", 0)), 6

    def layer(
        self,
        architecture: Architecture,
        in_features: int,
        out_features: int,
        *,
        last: bool,
        edge_types: int = 0,
    ) -> Layer:
        from hyrt.nn.message_passing.layers import RecurrentLayer

        return RecurrentLayer(in_features, out_features, scores=last, edge_types=edge_types)
