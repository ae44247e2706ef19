"""Wide layers of a user's own, trained as a user trains them: a step beside all pairs of vertices in float64.

A head, or all heads together, have more columns than a pass of the loops; edges occur twice, some are from a
vertex to itself, and some vertices have none.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hyrt_devices.opencl import OpenclDevice
from torch import Tensor, nn

import hyrt
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn import SagaLayer, stack
from hyrt.telemetry.events import StepMetrics

HEADS, CLASSES, LR = 2, 5, 20.0
needs_opencl = pytest.mark.skipif(
    not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device"
)


class Wide(SagaLayer):
    """A message of both ends with a size a head, which is a sum over the head's columns of each end."""

    self_loops = True
    width = 80

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        columns = HEADS * self.width
        self.near = nn.Linear(in_features, columns)
        self.far = nn.Linear(in_features, columns, bias=False)
        self.size = nn.Parameter(torch.linspace(-1, 1, columns).view(HEADS, self.width))
        self.update = nn.Linear(in_features + columns, out_features)

    def apply_edge(self, edge):
        near, far = (each.view(-1, HEADS, self.width) for each in (self.near(edge.dst), self.far(edge.src)))
        size = (near * self.size).sum(-1) + (far * self.size).sum(-1)
        return torch.tanh(near + far) * far * torch.sigmoid(size).unsqueeze(-1)

    def apply_vertex(self, vertex, gathered):
        return self.update(torch.cat([vertex, gathered.flatten(1)], 1))


class WideAlone(Wide):
    """Without edges of vertices from themselves one chunk writes, and adds to nothing that was there."""

    self_loops = False


class WideMean(Wide):
    accumulate = "mean"


class WideMax(Wide):
    accumulate = "max"


class WideAttention(Wide):
    """The score is a sum over a head's columns that are of both ends: a head cannot be cut."""

    accumulate = "attention"
    width = 20

    def apply_edge(self, edge):
        near, far = (each.view(-1, HEADS, self.width) for each in (self.near(edge.dst), self.far(edge.src)))
        mixed = torch.tanh(near + far)
        return (mixed * self.size).sum(-1), mixed * far


def multigraph() -> Graph:
    """Directed, with edges that occur twice or are from a vertex to itself, and vertices without any."""
    rng, num = np.random.default_rng(4), 70
    counts = rng.choice([0, 0, 0, 0, 0, 0, 0, 0, 1, 2], (num, num))
    counts[[3, 30, 69]] = 0
    indptr = np.concatenate([[0], np.cumsum(counts.sum(1))]).astype(np.int64)
    columns = np.concatenate([np.repeat(np.arange(num), row) for row in counts]).astype(np.int32)
    x = DenseFeatures((2 * rng.standard_normal((num, 6))).astype(np.float32))
    part = rng.integers(0, 3, num)
    masks = {"train": part == 0, "val": part > 2, "test": part > 2}
    labels = rng.integers(0, CLASSES, num).astype(np.int16)
    return Graph.from_arrays("multigraph", indptr, columns, x, labels, masks)


def dense_layer(kind: type[Wide], p: Mapping[str, Tensor], x: Tensor, counts: Tensor) -> Tensor:
    num = len(x)
    near = (x @ p["near.weight"].T + p["near.bias"]).view(num, 1, HEADS, kind.width)
    far = (x @ p["far.weight"].T).view(1, num, HEADS, kind.width)
    mixed = torch.tanh(near + far)
    message = mixed * far
    if kind.self_loops:
        # As in PyG's GATConv, one self-loop replaces those of the data.
        counts = counts - torch.diag(counts.diagonal()) + torch.eye(num, dtype=counts.dtype)
    there = counts[:, :, None, None]
    if kind.accumulate == "attention":
        weight = there * torch.exp((mixed * p["size"]).sum(3, keepdim=True))
        gathered = (weight / weight.sum(1, keepdim=True) * message).sum(1)
    else:
        message = message / (1 + torch.exp(-((near + far) * p["size"]).sum(3, keepdim=True)))
        if kind.accumulate == "max":
            gathered = message.masked_fill(there == 0, -torch.inf).amax(1)
        else:
            gathered = (there * message).sum(1)
            gathered = gathered / there.sum(1) if kind.accumulate == "mean" else gathered
    return torch.cat([x, gathered.flatten(1)], 1) @ p["update.weight"].T + p["update.bias"]


def dense_step(kind: type[Wide], model: nn.Module, graph: Graph) -> tuple[float, list[Tensor]]:
    """The mean loss of the training vertices, and the weights after a step of plain gradient descent."""
    topology, num = graph.topology, graph.num_vertices
    counts = np.zeros((num, num))
    rows = np.repeat(np.arange(num), np.diff(topology.indptr))
    np.add.at(counts, (rows, np.asarray(topology.indices)), 1)
    weights = {key: value.detach().double().requires_grad_() for key, value in model.named_parameters()}
    x = torch.from_numpy(np.asarray(graph.features.matrix)).double()
    for k in range(2):
        own = {key.split(".", 2)[2]: w for key, w in weights.items() if key.startswith(f"layers.{k}.")}
        x = dense_layer(kind, own, x, torch.from_numpy(counts))
        x = x.relu() if k == 0 else x
    train = torch.from_numpy(np.sort(graph.split("train")).astype(np.int64))
    labels = torch.from_numpy(graph.labels.astype(np.int64))
    loss = nn.functional.cross_entropy(x[train], labels[train])
    steps = torch.autograd.grad(loss, list(weights.values()))
    return float(loss.detach()), [(w - LR * g).detach() for w, g in zip(weights.values(), steps, strict=True)]


# What the host's loops cut into passes, and all that differs where they run in chunks.
CASES = [
    *(pytest.param(kind, "cpu", id=f"{kind.__name__}-cpu") for kind in (Wide, WideMax, WideAttention)),
    *(
        pytest.param(kind, "opencl:0", id=f"{kind.__name__}-opencl", marks=needs_opencl)
        for kind in (Wide, WideAlone, WideMean, WideMax, WideAttention)
    ),
]


@pytest.mark.parametrize(("kind", "device"), CASES)
def test_a_step_of_training_is_that_of_all_pairs(kind: type[Wide], device: str) -> None:
    graph = multigraph()
    torch.manual_seed(3)
    model = stack(kind(6, 6), kind(6, CLASSES))
    loss, weights = dense_step(kind, model, graph)
    before = [p.detach().double().clone() for p in model.parameters()]
    heard: list[float] = []
    result = hyrt.train(
        graph,
        model,
        full_graph=True,
        devices=device,
        train={"epochs": 1, "lr": LR, "optimizer": "SGD"},
        fullgraph={} if device == "cpu" else {"chunks": 3 if kind.self_loops else 1},
        emit=lambda event: heard.extend(event.losses) if isinstance(event, StepMetrics) else None,
    )
    assert heard == pytest.approx([loss], rel=1e-5)
    for old, new, expected in zip(before, result.model.parameters(), weights, strict=True):
        moved = float((expected - old).abs().max())
        assert moved > 1e-4
        assert float((new.detach().double() - expected).abs().max()) <= 1e-4 * moved + 1e-7
