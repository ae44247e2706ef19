"""CommNet layer."""

from __future__ import annotations

import torch
from torch import nn

from hyrt.nn.saga.layer import Edge, SagaLayer


class CommNetLayer(SagaLayer):
    """H x_i + C mean_j x_j (Sukhbaatar, Szlam and Fergus, 2016, equations 1 and 2); edges send plain rows.

    Parameters
    ----------
    in_features, out_features
        Widths of vertex rows before and after the layer.
    low_precision
        Multiply in bfloat16.
    """

    accumulate = "mean"

    def __init__(self, in_features: int, out_features: int, *, low_precision: bool = False) -> None:
        super().__init__(in_features, out_features)
        self.low_precision = low_precision
        self.own = nn.Linear(in_features, out_features)
        self.communication = nn.Linear(in_features, out_features, bias=False)

    def apply_edge(self, edge: Edge) -> torch.Tensor:
        return edge.src

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.own(vertex) + self.communication(gathered)
        return result
