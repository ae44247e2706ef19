"""GG-NN layer."""

from __future__ import annotations

from functools import reduce

import torch
from torch import nn

from hyrt.nn.saga.layer import Edge, SagaLayer


class RecurrentLayer(SagaLayer):
    """GRU(sum_j W_t x_j, x_i): a vertex's row is the state of a gated recurrent unit (Li et al., ICLR 2016).

    There is one matrix W_t per edge type t, or one for all edges if edge types are ignored. If the layer
    changes the width, the state is a linear map of the row; if its result is class scores, the scores are a
    linear map of the state.

    Parameters
    ----------
    in_features, out_features
        Widths of vertex rows before and after the layer.
    scores
        Whether the result is class scores.
    edge_types
        Number of edge types; 0 to ignore edge types.
    """

    def __init__(
        self, in_features: int, out_features: int, *, scores: bool = False, edge_types: int = 0
    ) -> None:
        super().__init__(in_features, out_features)
        width = in_features if scores else out_features
        self.edge_types = edge_types
        self.messages = nn.ModuleList(nn.Linear(in_features, width) for _ in range(max(1, edge_types)))
        self.state = nn.Identity() if in_features == width else nn.Linear(in_features, width)
        self.unit = nn.GRUCell(width, width)
        self.scores = nn.Linear(width, out_features) if scores else nn.Identity()

    def apply_edge(self, edge: Edge) -> torch.Tensor:
        products = [message(edge.src) for message in self.messages]
        result: torch.Tensor = products[0]
        if self.edge_types:
            chosen = [torch.where(edge.type == t, each, 0) for t, each in enumerate(products)]
            result = reduce(torch.add, chosen)
        return result

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.scores(self.unit(gathered, self.state(vertex)))
        return result
