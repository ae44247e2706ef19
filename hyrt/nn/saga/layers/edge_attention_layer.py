"""The layer of GAT with features of edges."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from hyrt.nn.saga.combining import Accumulator
from hyrt.nn.saga.layer import Edge, SagaLayer

_SLOPE = 0.2


class EdgeAttentionLayer(SagaLayer):
    """GAT whose scores have a term of the edge: leaky_relu(a_s . W x_j + a_d . W x_i + a_e . E e_ij).

    That of PyG's `GATConv(edge_dim=d)`, with a self loop whose features are the mean of the vertex's other
    edges (in a sampled block, of those that were drawn). Since a_e . E e is linear in e, an edge multiplies
    its features by one vector a head.

    Parameters
    ----------
    in_features
        Width of source rows.
    head_features
        Width of one head's result.
    heads
        Number of heads.
    edge_features
        Columns of the features of edges.
    average
        Average the heads instead of concatenating them.
    low_precision
        Multiply rows of vertices in bfloat16.
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
        each = (self.product.weight, self.edge_product.weight, self.source, self.destination, self.edge)
        for weight in each:
            nn.init.xavier_uniform_(weight)

    def apply_edge(self, edge: Edge) -> tuple[torch.Tensor, torch.Tensor]:
        heads, width = self._shape
        message = self.product(edge.src).view(-1, heads, width)
        own = self.product(edge.dst).view(-1, heads, width)
        of_edge = self.edge_product.weight.view(heads, width, -1) * self.edge[:, :, None]
        score = (message * self.source).sum(2) + (own * self.destination).sum(2)
        score = score + nn.functional.linear(edge.data, of_edge.sum(1))
        return nn.functional.leaky_relu(score, _SLOPE), message

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        combined = gathered.mean(1) if self.average else gathered.flatten(1)
        return combined + self.bias
