"""Layers as a user writes them, and what they compute written for all pairs of vertices at once.

A reference is given the parameters, the rows of destinations [n, 1, f] and sources [1, m, f], and the degrees
[n, 1, 1] and [1, m, 1] of both, and gives the message of every pair, [n, m, ...], for `attention` with its
score before it, and what becomes of [n, f] rows and of what was gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, leaky_relu, linear, relu, softplus

from hyrt.nn import SagaLayer

Parameters = Mapping[str, Tensor]


class Gated(SagaLayer):
    """G-GCN (NeuGraph, equations 1 and 2)."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.gate_dst = nn.Linear(in_features, in_features)
        self.gate_src = nn.Linear(in_features, in_features, bias=False)
        self.update = nn.Linear(in_features, out_features)

    def apply_edge(self, edge):
        return torch.sigmoid(self.gate_dst(edge.dst) + self.gate_src(edge.src)) * edge.src

    def apply_vertex(self, vertex, gathered):
        return torch.relu(self.update(gathered))


class GatedMean(Gated):
    accumulate = "mean"
    self_loops = True


class Gcn(SagaLayer):
    self_loops = True

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.product = nn.Linear(in_features, out_features)

    def apply_edge(self, edge):
        return edge.src * torch.rsqrt((edge.src_degree + 1) * (edge.dst_degree + 1))

    def apply_vertex(self, vertex, gathered):
        return self.product(gathered)


class Sage(SagaLayer):
    accumulate = "mean"

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.product = nn.Linear(2 * in_features, out_features)

    def apply_edge(self, edge):
        return edge.src

    def apply_vertex(self, vertex, gathered):
        return self.product(torch.cat([vertex, gathered], 1))


class Gin(SagaLayer):
    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.epsilon = nn.Parameter(torch.tensor(0.3))
        self.mlp = nn.Sequential(
            nn.Linear(in_features, out_features), nn.ReLU(), nn.Linear(out_features, out_features)
        )

    def apply_edge(self, edge):
        return edge.src

    def apply_vertex(self, vertex, gathered):
        return self.mlp((1 + self.epsilon) * vertex + gathered)


class Gat(SagaLayer):
    accumulate = "attention"
    self_loops = True

    def __init__(self, in_features: int, out_features: int, heads: int = 2) -> None:
        super().__init__(in_features, out_features)
        self.heads, self.width = heads, out_features // heads
        self.product = nn.Linear(in_features, out_features, bias=False)
        self.source = nn.Parameter(torch.randn(heads, self.width))
        self.destination = nn.Parameter(torch.randn(heads, self.width))

    def apply_edge(self, edge):
        x = self.product(edge.src).view(-1, self.heads, self.width)
        y = self.product(edge.dst).view(edge.dst.shape[0], self.heads, -1)
        return leaky_relu((x * self.source).sum(-1) + (y * self.destination).sum(-1), 0.2), x

    def apply_vertex(self, vertex, gathered):
        return gathered.flatten(1)


class GatV2(Gat):
    """Attention whose score is no sum of scores of the two ends (Brody et al., 2022)."""

    def __init__(self, in_features: int, out_features: int, heads: int = 2) -> None:
        super().__init__(in_features, out_features, heads)
        del self.destination

    def apply_edge(self, edge):
        x = self.product(edge.src).view(-1, self.heads, self.width)
        y = self.product(edge.dst).view(-1, self.heads, self.width)
        return (leaky_relu(x + y, 0.2) * self.source).sum(-1), x


class EdgeConv(SagaLayer):
    """One product of both ends (Wang et al., 2019), which is taken apart."""

    accumulate = "max"

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.product = nn.Linear(2 * in_features, out_features)

    def apply_edge(self, edge):
        return torch.relu(self.product(torch.cat([edge.dst, edge.src - edge.dst], 1)))

    def apply_vertex(self, vertex, gathered):
        return gathered


class Perceptron(SagaLayer):
    """Two products on an edge: the second one is no form."""

    accumulate = "mean"
    self_loops = True

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.first = nn.Linear(2 * in_features, 6)
        self.second = nn.Linear(6, out_features)
        self.skip = nn.Linear(in_features, out_features, bias=False)

    def apply_edge(self, edge):
        return self.second(torch.tanh(self.first(torch.cat([edge.dst, edge.src], 1)))) * edge.dst_degree

    def apply_vertex(self, vertex, gathered):
        return gathered + self.skip(vertex)


class Mixed(SagaLayer):
    """Vectors of parameters, a choice, and many functions, element by element."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.product = nn.Linear(in_features, out_features)
        self.scale = nn.Parameter(torch.randn(out_features))
        self.one = nn.Parameter(torch.randn(1))

    def apply_edge(self, edge):
        a, b = self.product(edge.src), self.product(edge.dst)
        near = torch.where(a > b, a * self.scale, softplus(b - a) / (1 + a * a))
        far = torch.exp(-((a - b) ** 2)) + elu(a * b) * self.one.tanh()
        return torch.maximum(near, far) + (a - b).abs().clamp(max=1.5) * (a * b).sum(-1, keepdim=True)

    def apply_vertex(self, vertex, gathered):
        return gathered


@dataclass(frozen=True)
class Reference:
    """A layer for all pairs of vertices."""

    layer: type[SagaLayer]
    message: Callable[[Parameters, Tensor, Tensor, Tensor, Tensor], Any]
    update: Callable[[Parameters, Tensor, Tensor], Tensor]
    is_fused: bool = True


def _gat_message(p: Parameters, dst: Tensor, src: Tensor, to: Tensor, come: Tensor) -> Any:
    heads, width = p["source"].shape
    x, y = (linear(rows, p["product.weight"]).unflatten(2, (heads, width)) for rows in (src, dst))
    if "destination" in p:
        score = leaky_relu((x * p["source"]).sum(3) + (y * p["destination"]).sum(3), 0.2)
    else:
        score = (leaky_relu(x + y, 0.2) * p["source"]).sum(3)
    return score, x.expand(len(dst), -1, -1, -1)


def _mixed_message(p: Parameters, dst: Tensor, src: Tensor, to: Tensor, come: Tensor) -> Tensor:
    a, b = (linear(rows, p["product.weight"], p["product.bias"]) for rows in (src, dst))
    a, b = torch.broadcast_tensors(a, b)
    near = torch.where(a > b, a * p["scale"], torch.log1p(torch.exp(b - a)) / (1 + a.square()))
    product = a * b
    grown = torch.where(product > 0, product, torch.expm1(product.clamp(max=0)))
    far = torch.exp(-((a - b) ** 2)) + grown * torch.tanh(p["one"])
    distance = torch.minimum((a - b).abs(), torch.tensor(1.5, dtype=a.dtype))
    return torch.where(near > far, near, far) + distance * product.sum(-1, keepdim=True)


def _perceptron(p: Parameters, dst: Tensor, src: Tensor, to: Tensor, come: Tensor) -> Tensor:
    both = torch.cat([dst.expand(-1, src.shape[1], -1), src.expand(len(dst), -1, -1)], 2)
    hidden = torch.tanh(linear(both, p["first.weight"], p["first.bias"]))
    return linear(hidden, p["second.weight"], p["second.bias"]) * to


def _gated(p: Parameters, dst: Tensor, src: Tensor, to: Tensor, come: Tensor) -> Tensor:
    gate = dst @ p["gate_dst.weight"].T + p["gate_dst.bias"] + src @ p["gate_src.weight"].T
    return src / (1 + torch.exp(-gate))


def _gated_update(p: Parameters, own: Tensor, gathered: Tensor) -> Tensor:
    return relu(gathered @ p["update.weight"].T + p["update.bias"])


REFERENCES = {
    "G-GCN": Reference(Gated, _gated, _gated_update),
    "gated mean": Reference(GatedMean, _gated, _gated_update),
    "GCN": Reference(
        Gcn,
        lambda p, dst, src, to, come: src / torch.sqrt((to + 1) * (come + 1)),
        lambda p, own, gathered: gathered @ p["product.weight"].T + p["product.bias"],
    ),
    "GraphSAGE": Reference(
        Sage,
        lambda p, dst, src, to, come: src.expand(len(dst), -1, -1),
        lambda p, own, gathered: torch.cat([own, gathered], 1) @ p["product.weight"].T + p["product.bias"],
    ),
    "GIN": Reference(
        Gin,
        lambda p, dst, src, to, come: src.expand(len(dst), -1, -1),
        lambda p, own, gathered: (
            relu(((1 + p["epsilon"]) * own + gathered) @ p["mlp.0.weight"].T + p["mlp.0.bias"])
            @ p["mlp.2.weight"].T
            + p["mlp.2.bias"]
        ),
    ),
    "GAT": Reference(Gat, _gat_message, lambda p, own, gathered: gathered.flatten(1)),
    "GATv2": Reference(GatV2, _gat_message, lambda p, own, gathered: gathered.flatten(1)),
    "EdgeConv": Reference(
        EdgeConv,
        lambda p, dst, src, to, come: relu(
            linear(
                torch.cat([dst.expand(-1, src.shape[1], -1), src - dst], 2),
                p["product.weight"],
                p["product.bias"],
            )
        ),
        lambda p, own, gathered: gathered,
    ),
    "perceptron": Reference(
        Perceptron, _perceptron, lambda p, own, gathered: gathered + own @ p["skip.weight"].T, is_fused=False
    ),
    "mixed": Reference(Mixed, _mixed_message, lambda p, own, gathered: gathered),
}


def layer_of(name: str, in_features: int, out_features: int) -> SagaLayer:
    """A layer with parameters that do not depend on what was drawn before."""
    torch.manual_seed(len(name))
    return REFERENCES[name].layer(in_features, out_features)


def dense_result(
    name: str,
    parameters: Parameters,
    x: Tensor,
    counts: Tensor,
    weights: Tensor,
    degrees: Tensor,
    source_degrees: Tensor,
) -> Tensor:
    """What a layer computes for [n] destinations, the first of [m] sources.

    Parameters
    ----------
    name
        The reference.
    parameters
        Of the layer.
    x
        [m, f] float64.
    counts, weights
        [n, m] how many edges there are of each pair, without loops, and their weight together.
    degrees, source_degrees
        [n] and [m] in the whole graph.
    """
    reference = REFERENCES[name]
    kind, own = reference.layer, x[: len(counts)]
    ends = (degrees[:, None, None], source_degrees[None, :, None])
    message = reference.message(parameters, own[:, None], x[None], *ends)
    loops = torch.eye(*counts.shape, dtype=x.dtype) if kind.self_loops else torch.zeros_like(counts)
    there = counts + loops
    if kind.accumulate == "attention":
        score, message = message
        factor = there[:, :, None] * torch.exp(score)
        factor = factor / factor.sum(1, keepdim=True).clamp(min=1e-300)
        gathered = (factor[..., None] * message).sum(1)
    elif kind.accumulate == "max":
        hidden = message.masked_fill(there[:, :, None] == 0, -torch.inf).amax(1)
        gathered = torch.where(there.sum(1, keepdim=True) > 0, hidden, 0)
    else:
        # Weights of edges undo the sampling; without them, the k neighbours that were drawn stand for all d.
        full, drawn = degrees[:, None], counts.sum(1, keepdim=True)
        weighted = not torch.equal(weights, counts)
        if kind.accumulate == "sum":
            factor = (weights if weighted else weights * full / drawn.clamp(min=1)) + loops
        else:
            number = (full if weighted else drawn) + loops.sum(1, keepdim=True)
            factor = (weights + loops) / number.clamp(min=1)
        gathered = (factor[:, :, None] * message).sum(1)
    return reference.update(parameters, own, gathered)
