"""GAT layer with edge features."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from hyrt.nn.saga.combining import Accumulator
from hyrt.nn.saga.layer import Edge, SagaLayer

_SLOPE = 0.2


class EdgeAttentionLayer(SagaLayer):
    """GAT with edge features in its scores: leaky_relu(a_s . W x_j + a_d . W x_i + a_e . E e_ij).

    Equals PyG's `GATConv(edge_dim=d)`, with a self-loop whose features are the mean over the vertex's other
    edges (in a sampled block, over the sampled edges). Since a_e . E e is linear in e, an edge multiplies its
    features by one vector per head.

    Parameters
    ----------
    in_features
        Width of source rows.
    head_features
        Width of one head's result.
    heads
        Number of heads.
    edge_features
        Number of edge features.
    average
        Whether to average the heads instead of concatenating them.
    low_precision
        Multiply vertex rows in bfloat16.
    """

    accumulate: ClassVar[Accumulator] = "attention"
    self_loops: ClassVar[bool] = True

    def __init__(
        self,
        in_features: int,
        head_features: int,
        heads: int,
        edge_features: int,
        *,
        average: bool = False,
        low_precision: bool = False,
    ) -> None:
        super().__init__(in_features, head_features if average else heads * head_features)
        self.edge_features = edge_features
        self.average = average
        self.low_precision = low_precision
        self._shape = (heads, head_features)
        self.product = nn.Linear(in_features, heads * head_features, bias=False)
        self.edge_product = nn.Linear(edge_features, heads * head_features, bias=False)
        self.source = nn.Parameter(torch.empty(heads, head_features))
        self.destination = nn.Parameter(torch.empty(heads, head_features))
        self.edge = nn.Parameter(torch.empty(heads, head_features))
        self.bias = nn.Parameter(torch.zeros(self.out_features))
        weights = (self.product.weight, self.edge_product.weight, self.source, self.destination, self.edge)
        for weight in weights:
            nn.init.xavier_uniform_(weight)

    def apply_edge(self, edge: Edge) -> tuple[torch.Tensor, torch.Tensor]:
        heads, width = self._shape
        message = self.product(edge.src).view(-1, heads, width)
        destination = self.product(edge.dst).view(-1, heads, width)
        edge_vectors = self.edge_product.weight.view(heads, width, -1) * self.edge[:, :, None]
        score = (message * self.source).sum(2) + (destination * self.destination).sum(2)
        score = score + nn.functional.linear(edge.data, edge_vectors.sum(1))
        return nn.functional.leaky_relu(score, _SLOPE), message

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        combined = gathered.mean(1) if self.average else gathered.flatten(1)
        return combined + self.bias
