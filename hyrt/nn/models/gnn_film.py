"""GNN-FiLM (Brockschmidt, ICML 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from hyrt.nn.models.model_kind import ModelKind

if TYPE_CHECKING:
    from hyrt.nn.architecture import Architecture
    from hyrt.nn.layer import Layer


class GnnFilm(ModelKind):
    """Model kind that sums the neighbours' products, with a scale and shift that depend on the destination.

    With `model.options={edge_types: n}`, each of n edge types has a separate weight, scale and shift.
    """

    best_form = "rows"
    adds_rows_last = True
    # The norm bounds the sums over neighbours, which grow with the degree. Ten layers learn less well at
    # 3e-3.
    defaults: ClassVar = {
        "train.lr": 1e-3,
        "model.layers": 10,
        "model.dropout": 0.2,
        "model.norm": "layer",
        "model.residual": True,
    }
    reads = ()

    costs_like = "gcn"
    assumption = "a gnn-film layer multiplies at the rate of a gcn layer; scaling and shifting edges is free"

    def products(self, options: Mapping[str, Any]) -> tuple[float, float]:
        """Count messages per source, and scales, shifts and the message of a self-loop per destination."""
        types = max(1, options.get("edge_types", 0))
        return types, 2 * types + 3

    def layer(
        self,
        architecture: Architecture,
        in_features: int,
        out_features: int,
        *,
        last: bool,
        edge_types: int = 0,
    ) -> Layer:
        from hyrt.nn.message_passing.layers import FilmLayer

        return FilmLayer(
            in_features,
            out_features,
            scores=last,
            edge_types=edge_types,
            low_precision=architecture.low_precision,
        )
