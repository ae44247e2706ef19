"""Layers that tell types of edges apart, and what they compute written edge by edge in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from hyrt.graph.graph import Graph
from hyrt.nn import SagaLayer
from hyrt.nn.message_passing.layers import FilmLayer, RecurrentLayer

TYPES = 3
Parameters = Mapping[str, Tensor]


class Relational(SagaLayer):
    """A product for each type (Schlichtkrull et al., 2018), and a gate of the destination."""

    accumulate = "mean"
    edge_types = TYPES

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.by_type = nn.ModuleList(nn.Linear(in_features, out_features) for _ in range(TYPES))
        self.gate = nn.Linear(in_features, out_features)

    def apply_edge(self, edge):
        chosen = [torch.where(edge.type == t, self.by_type[t](edge.src), 0) for t in range(TYPES)]
        return torch.sigmoid(self.gate(edge.dst)) * sum(chosen)

    def apply_vertex(self, vertex, gathered):
        return gathered


class TypedAttention(SagaLayer):
    """Scores with a number for each type and head; what is not of the first type counts half."""

    accumulate = "attention"
    edge_types = TYPES

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.product = nn.Linear(in_features, out_features)
        self.near = nn.Linear(in_features, 2)
        self.far = nn.Linear(in_features, 2)
        self.bias = nn.Parameter(torch.randn(TYPES, 2))

    def apply_edge(self, edge):
        score = leaky_relu(self.near(edge.dst) + self.far(edge.src), 0.2)
        for t in range(TYPES):
            score = score + torch.where(edge.type == t, self.bias[t], 0)
        part = torch.where(edge.type != 0, 0.5, 1.0)
        return score, self.product(edge.src).view(-1, 2, self.out_features // 2) * part[:, :, None]

    def apply_vertex(self, vertex, gathered):
        return gathered.flatten(1)


class TypedLargest(SagaLayer):
    accumulate = "max"
    edge_types = TYPES

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.product = nn.Linear(in_features, out_features)
        self.near = nn.Linear(in_features, out_features)

    def apply_edge(self, edge):
        return torch.tanh(self.product(edge.src) - self.near(edge.dst) * edge.type)

    def apply_vertex(self, vertex, gathered):
        return gathered


class TypedPerceptron(SagaLayer):
    """Two products on an edge, which torch computes."""

    edge_types = TYPES

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.first = nn.Linear(in_features + 1, 5)
        self.second = nn.Linear(5, out_features)

    def apply_edge(self, edge):
        return self.second(torch.tanh(self.first(torch.cat([edge.src, edge.type], 1))))

    def apply_vertex(self, vertex, gathered):
        return gathered


@dataclass(frozen=True)
class TypedReference:
    """A layer edge by edge: given parameters, rows of both ends and types of all edges."""

    layer: Callable[[int, int], SagaLayer]
    message: Callable[[Parameters, Tensor, Tensor, Tensor], Any]
    update: Callable[[Parameters, Tensor, Tensor], Tensor] = lambda p, own, gathered: gathered


def _linear(p: Parameters, name: str, x: Tensor) -> Tensor:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def _by_type(p: Parameters, name: str, x: Tensor, types: Tensor) -> Tensor:
    weight, bias = (
        torch.stack([p[f"{name}.{t}.{part}"] for t in range(TYPES)]) for part in ("weight", "bias")
    )
    return (weight[types] @ x[:, :, None])[:, :, 0] + bias[types]


def _attention(p: Parameters, dst: Tensor, src: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
    score = leaky_relu(_linear(p, "near", dst) + _linear(p, "far", src), 0.2) + p["bias"][types]
    part = torch.tensor([1.0, 0.5, 0.5], dtype=src.dtype)[types]
    return score, (_linear(p, "product", src) * part[:, None]).unflatten(1, (2, -1))


def _recurrent(p: Parameters, own: Tensor, gathered: Tensor) -> Tensor:
    state = _linear(p, "state", own) if "state.weight" in p else own
    given = (gathered @ p["unit.weight_ih"].T + p["unit.bias_ih"]).chunk(3, 1)
    known = (state @ p["unit.weight_hh"].T + p["unit.bias_hh"]).chunk(3, 1)
    reset, update = (torch.sigmoid(given[k] + known[k]) for k in range(2))
    return (1 - update) * torch.tanh(given[2] + reset * known[2]) + update * state


def _film(p: Parameters, dst: Tensor, src: Tensor, types: Tensor) -> Tensor:
    weight = torch.stack([p[f"films.{t}.message.weight"] for t in range(TYPES)])
    scale, shift = (
        torch.stack([_linear(p, f"films.{t}.{part}", dst) for t in range(TYPES)], 1)[
            torch.arange(len(dst)), types
        ]
        for part in ("scale", "shift")
    )
    return (scale * (weight[types] @ src[:, :, None])[:, :, 0] + shift).relu()


def _own_film(p: Parameters, own: Tensor, gathered: Tensor) -> Tensor:
    message = own @ p["own.message.weight"].T
    return gathered + (_linear(p, "own.scale", own) * message + _linear(p, "own.shift", own)).relu()


TYPED = {
    "GNN-FiLM": TypedReference(lambda a, b: FilmLayer(a, b, edge_types=TYPES), _film, _own_film),
    "GG-NN": TypedReference(
        lambda a, b: RecurrentLayer(a, b, edge_types=TYPES),
        lambda p, dst, src, types: _by_type(p, "messages", src, types),
        _recurrent,
    ),
    "relational": TypedReference(
        Relational,
        lambda p, dst, src, types: (
            _by_type(p, "by_type", src, types) * torch.sigmoid(_linear(p, "gate", dst))
        ),
    ),
    "attention": TypedReference(TypedAttention, _attention, lambda p, own, gathered: gathered.flatten(1)),
    "largest": TypedReference(
        TypedLargest,
        lambda p, dst, src, types: torch.tanh(
            _linear(p, "product", src) - _linear(p, "near", dst) * types[:, None]
        ),
    ),
    "perceptron": TypedReference(
        TypedPerceptron,
        lambda p, dst, src, types: _linear(
            p, "second", torch.tanh(_linear(p, "first", torch.cat([src, types[:, None].to(src)], 1)))
        ),
    ),
}


def typed_layer(name: str, in_features: int, out_features: int) -> SagaLayer:
    """A layer with parameters that do not depend on what was drawn before."""
    torch.manual_seed(len(name))
    return TYPED[name].layer(in_features, out_features)


def with_types(graph: Graph, dtype: Any = np.int8) -> Graph:
    """The graph, with a type for each edge; both directions of a symmetric one have types of their own."""
    types = np.random.default_rng(5).integers(0, TYPES, graph.num_edges).astype(dtype)
    types[:1] = TYPES - 1
    return replace(graph, topology=replace(graph.topology, edge_types=types))


def typed_result(
    name: str,
    p: Parameters,
    x: Tensor,
    edges: tuple[Any, Any, Any],
    degrees: Any,
) -> Tensor:
    """What a layer computes for the first [n] of [m] vertices, in float64.

    Parameters
    ----------
    name
        The reference.
    p
        The parameters of the layer.
    x
        [m, f] rows.
    edges
        The starts of destinations' edges [n + 1], and the source and the type of each.
    degrees
        [n] of the destinations in the whole graph.
    """
    reference = TYPED[name]
    indptr, columns, types = (torch.from_numpy(np.asarray(each).astype(np.int64)) for each in edges)
    num, kind = len(indptr) - 1, reference.layer(2, 2).accumulate
    counts = indptr.diff()
    rows = torch.repeat_interleave(torch.arange(num), counts)
    message = reference.message(p, x[rows], x[columns], types)
    gathered = []
    for i in range(num):
        mine = slice(int(indptr[i]), int(indptr[i + 1]))
        if kind == "attention":
            score, values = (each[mine] for each in message)
            total = (score.softmax(0)[:, :, None] * values).sum(0)
        elif kind == "max":
            total = message[mine].amax(0) if counts[i] else torch.zeros_like(message[0])
        else:
            factor = float(degrees[i]) if kind == "sum" else 1.0
            total = message[mine].sum(0) * factor / max(1, int(counts[i]))
        gathered.append(total)
    return reference.update(p, x[:num], torch.stack(gathered))


def typed_step(
    names: tuple[str, ...], layers: Any, graph: Graph, targets: np.ndarray[Any, Any]
) -> tuple[float, list[Tensor]]:
    """The loss sum of the targets in float64, and its gradients; a ReLU stands between the layers."""
    topology = graph.topology
    edges = (topology.indptr, topology.indices, topology.edge_types)
    x = torch.from_numpy(np.asarray(graph.features.matrix)).double()
    taken: list[Tensor] = []
    for i, (name, layer) in enumerate(zip(names, layers, strict=True)):
        p = {key: value.detach().double().requires_grad_() for key, value in layer.named_parameters()}
        x = typed_result(name, p, x.relu() if i else x, edges, topology.in_degrees)
        taken += p.values()
    labels = torch.from_numpy(graph.labels.astype(np.int64))
    loss = nn.functional.cross_entropy(x[targets], labels[targets], reduction="sum")
    return float(loss.detach()), list(torch.autograd.grad(loss, taken))


def assert_step(loss_sum: float, gradients: list[Tensor], expected: tuple[float, list[Tensor]]) -> None:
    """A step's loss sum and gradients are those of `typed_step`, within 1e-4 relative."""
    loss, theirs = expected
    assert abs(loss_sum - loss) <= 1e-4 * abs(loss)
    largest = max(float(each.abs().max()) for each in theirs)
    for mine, other in zip(gradients, theirs, strict=True):
        assert float((mine.double() - other).abs().max()) <= 1e-4 * max(
            float(other.abs().max()), 1e-3 * largest
        )
