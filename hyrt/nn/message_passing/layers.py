"""Built-in layers that derive from `SagaLayer`, like user-defined layers."""

from __future__ import annotations

from functools import reduce
from typing import ClassVar

import torch
from torch import nn

from hyrt.nn.message_passing.layer import Edge, SagaLayer
from hyrt.nn.message_passing.program import Accumulator


class CommNetLayer(SagaLayer):
    """H x_i + C mean_j x_j (Sukhbaatar, Szlam and Fergus, 2016, equations 1 and 2); messages are rows."""

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


_SLOPE = 0.2


class EdgeAttentionLayer(SagaLayer):
    """GAT with edge features in its scores: leaky_relu(a_s . W x_j + a_d . W x_i + a_e . E e_ij).

    The layer equals PyG's `GATConv(edge_dim=d)` with self-loops, whose features are the mean over the
    vertex's other edges (in a sampled block, over the sampled edges). Since a_e . E e is linear in e, an edge
    multiplies its features by one vector per head. Heads are concatenated, or averaged if `average`.
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


class _Film(nn.Module):
    """relu(g_i * W x_j + b_i), where scale g_i and shift b_i are linear maps of the row x_i."""

    def __init__(self, in_features: int, out_features: int, *, bare: bool) -> None:
        super().__init__()
        self.message = nn.Linear(in_features, out_features, bias=False)
        self.scale = nn.Linear(in_features, out_features)
        self.shift = nn.Linear(in_features, out_features)
        self.bare = bare
        # Start with scale 1 and shift 0. Otherwise the repeated products overflow after about ten layers.
        nn.init.ones_(self.scale.bias)
        for parameter in (self.scale.weight, self.shift.weight, self.shift.bias):
            nn.init.zeros_(parameter)

    def forward(self, source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.scale(destination) * self.message(source) + self.shift(destination)
        return result if self.bare else result.relu()


class FilmLayer(SagaLayer):
    """sum_j relu(g_i * W_t x_j + b_i) over the edges from j to i of type t (Brockschmidt, 2020, equation 5).

    The scale g_i and the shift b_i of an edge type are linear maps of x_i. Self-loops have a separate type.
    The paper's function of the sum is here the norm that the model adds. If the result is the class `scores`,
    the sum has no ReLU, since scores may be negative. `edge_types=0` ignores edge types.
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


class GatedLayer(SagaLayer):
    """U x_i + sum_j sigmoid(A x_i + B x_j) * V x_j, where * is the element-wise product.

    This is the residual gated graph convolution of Bresson and Laurent (2017), equation 11; the model adds
    the residual connection and the norm. NeuGraph's G-GCN (equations 1 and 2) has no self term, and
    multiplies after the sum.
    """

    def __init__(self, in_features: int, out_features: int, *, low_precision: bool = False) -> None:
        super().__init__(in_features, out_features)
        self.low_precision = low_precision
        self.own = nn.Linear(in_features, out_features)
        self.gate_destination = nn.Linear(in_features, out_features)
        self.gate_source = nn.Linear(in_features, out_features, bias=False)
        self.message = nn.Linear(in_features, out_features, bias=False)

    def apply_edge(self, edge: Edge) -> torch.Tensor:
        gate = torch.sigmoid(self.gate_destination(edge.dst) + self.gate_source(edge.src))
        result: torch.Tensor = gate * self.message(edge.src)
        return result

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.own(vertex) + gathered
        return result


class GineLayer(SagaLayer):
    """MLP((1 + epsilon) x_i + sum_j relu(x_j + E e_ij)): GIN with edge features e (Hu et al., ICLR 2020).

    The layer equals PyG's `GINEConv` with `edge_dim`. In sampled blocks, the sum over k of d neighbours is
    multiplied by d / k. For `hidden` and `norm`, see `hyrt.nn.layers.GinLayer`.
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


class RecurrentLayer(SagaLayer):
    """GRU(sum_j W_t x_j, x_i): a row is the state of a gated recurrent unit (Li et al., ICLR 2016).

    There is one matrix W_t per edge type t, or one for all edges if `edge_types` is 0. If the layer changes
    the width, the state is a linear map of the input row. If its result is the class `scores`, they are a
    linear map of the state.
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
