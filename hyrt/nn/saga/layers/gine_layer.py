"""GINE layer."""

from __future__ import annotations

import torch
from torch import nn

from hyrt.nn.saga.layer import Edge, SagaLayer


class GineLayer(SagaLayer):
    """MLP((1 + epsilon) x_i + sum_j relu(x_j + E e_ij)): GIN with edge features e (Hu et al., ICLR 2020).

    Equals PyG's `GINEConv` with `edge_dim`. In sampled blocks the sum of k sampled neighbours out of d
    is multiplied by d / k.

    Parameters
    ----------
    in_features, out_features
        Widths of vertex rows before and after the layer.
    edge_features
        Number of edge features.
    hidden
        Width of the MLP's hidden layer; the width of the result by default.
    epsilon
        Extra weight of the self row.
    norm
        Whether the MLP's hidden layer has a LayerNorm before its ReLU; see `hyrt.nn.layers.GinLayer`.
    low_precision
        Multiply vertex rows in bfloat16.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        edge_features: int,
        *,
        hidden: int | None = None,
        epsilon: float = 0.0,
        norm: bool = False,
        low_precision: bool = False,
    ) -> None:
        super().__init__(in_features, out_features)
        hidden = out_features if hidden is None else hidden
        self.edge_features = edge_features
        self.epsilon = epsilon
        self.low_precision = low_precision
        self.edge = nn.Linear(edge_features, in_features)
        self.inner = nn.Linear(in_features, hidden)
        self.norm = nn.LayerNorm(hidden) if norm else nn.Identity()
        self.outer = nn.Linear(hidden, out_features)

    def apply_edge(self, edge: Edge) -> torch.Tensor:
        return torch.relu(edge.src + self.edge(edge.data))

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.inner((1 + self.epsilon) * vertex + gathered))
        result: torch.Tensor = self.outer(torch.relu(hidden))
        return result
