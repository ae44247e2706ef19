"""GNN-FiLM layer."""

from __future__ import annotations

from functools import reduce

import torch
from torch import nn

from hyrt.nn.saga.layer import Edge, SagaLayer


class _Film(nn.Module):
    """relu(g_i * W x_j + b_i), with scale g_i and shift b_i as linear maps of the destination's row x_i."""

    def __init__(self, in_features: int, out_features: int, *, bare: bool) -> None:
        super().__init__()
        self.message = nn.Linear(in_features, out_features, bias=False)
        self.scale = nn.Linear(in_features, out_features)
        self.shift = nn.Linear(in_features, out_features)
        self.bare = bare
        # Start without scaling and shifting, since products of products overflow in ten layers.
        nn.init.ones_(self.scale.bias)
        for parameter in (self.scale.weight, self.shift.weight, self.shift.bias):
            nn.init.zeros_(parameter)

    def forward(self, source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.scale(destination) * self.message(source) + self.shift(destination)
        return result if self.bare else result.relu()


class FilmLayer(SagaLayer):
    """sum_j relu(g_i * W_t x_j + b_i), over the edges from j to i of type t (Brockschmidt, 2020, equation 5).

    The scale g_i and the shift b_i of an edge type are linear maps of x_i. Self-loops have a separate type.
    The paper's function of the sum is the norm that the model adds. Scores are sums without a ReLU, since
    they may be negative.

    Parameters
    ----------
    in_features, out_features
        Widths of vertex rows before and after the layer.
    scores
        Whether the result is class scores.
    edge_types
        Number of edge types; 0 to ignore edge types.
    low_precision
        Multiply in bfloat16.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        scores: bool = False,
        edge_types: int = 0,
        low_precision: bool = False,
    ) -> None:
        super().__init__(in_features, out_features)
        self.low_precision = low_precision
        self.edge_types = edge_types
        self.own = _Film(in_features, out_features, bare=scores)
        self.films = nn.ModuleList(
            _Film(in_features, out_features, bare=scores) for _ in range(max(1, edge_types))
        )

    def apply_edge(self, edge: Edge) -> torch.Tensor:
        messages = [film(edge.src, edge.dst) for film in self.films]
        result: torch.Tensor = messages[0]
        if self.edge_types:
            chosen = [torch.where(edge.type == t, each, 0) for t, each in enumerate(messages)]
            result = reduce(torch.add, chosen)
        return result

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.own(vertex, vertex) + gathered
        return result
