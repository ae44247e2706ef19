"""Features of edges: `edge.weight` and `edge.data` of a layer, GINE and GAT, beside PyG and float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from block_cases import awkward_graph, sampled, tensor_block, values
from graphs import random_graph, with_values

import hyrt
from hyrt.errors import ConfigError, DataError, UnsupportedModelError
from hyrt.graph.graph import Graph
from hyrt.nn import SagaLayer, stack
from hyrt.nn.layer import InPlaceFeatures
from hyrt.nn.message_passing.layers import EdgeAttentionLayer, GineLayer
from hyrt.nn.model_checks import check_edge_values
from hyrt.nn.torch_threads import torch_threads
from hyrt.sampling.block import Block

GRAPH = with_values(awkward_graph(), columns=3)
IN, OUT = GRAPH.num_features, 6


class Weighted(SagaLayer):
    """One loop: messages times weights, with the edge's features where rows have as many columns."""

    accumulate: ClassVar[Any] = "sum"

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.product = torch.nn.Linear(in_features, out_features)

    def apply_edge(self, edge: Any) -> torch.Tensor:
        return edge.weight * self.product(edge.src)

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        return gathered


class Gated(Weighted):
    """One loop: as many features of edges as rows have columns multiply what comes."""

    accumulate: ClassVar[Any] = "mean"
    edge_features = 3

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, 3)
        self.update = torch.nn.Linear(3, out_features)
        self.out_features = out_features

    def apply_edge(self, edge: Any) -> torch.Tensor:
        return torch.sigmoid(edge.data) * self.product(edge.src)

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        return self.update(gathered)


LAYERS: dict[str, Callable[[int, int], SagaLayer]] = {
    "weighted": Weighted,
    "gated": Gated,
    "gine": lambda a, b: GineLayer(a, b, 3, hidden=5, epsilon=0.3),
    "attention": lambda a, b: EdgeAttentionLayer(a, b // 2, 2, 3),
    "attention, averaged": lambda a, b: EdgeAttentionLayer(a, b, 2, 3, average=True),
}


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def layer_of(name: str, a: int = IN, b: int = OUT) -> SagaLayer:
    torch.manual_seed(4)
    return LAYERS[name](a, b)


def by_edges(layer: SagaLayer, block: Block, x: torch.Tensor) -> torch.Tensor:
    """A layer edge by edge, destination after destination, by its formula in float64."""
    p = dict(layer.named_parameters())
    weights = torch.from_numpy(block.edge_weights).double()
    rows, gathered = torch.from_numpy(block.edge_features).double(), []
    for i in range(block.num_dst):
        at = slice(int(block.indptr[i]), int(block.indptr[i + 1]))
        src, e, w = x[torch.from_numpy(block.columns[at].astype(np.int64))], rows[at], weights[at, None]
        factor = float(block.degrees[i]) / max(1, len(src))
        if isinstance(layer, GineLayer):
            along = (src + e @ p["edge.weight"].T + p["edge.bias"]).relu().sum(0) * factor
            hidden = (1.3 * x[i] + along) @ p["inner.weight"].T + p["inner.bias"]
            gathered.append(hidden.relu() @ p["outer.weight"].T + p["outer.bias"])
        elif isinstance(layer, EdgeAttentionLayer):
            heads, width = layer.source.shape
            mean = e.mean(0, keepdim=True) if len(e) else torch.zeros(1, 3, dtype=torch.float64)
            both = torch.cat([x[i : i + 1], src]), torch.cat([mean, e])
            z = (both[0] @ p["product.weight"].T).view(-1, heads, width)
            of_edge = (both[1] @ p["edge_product.weight"].T).view(-1, heads, width)
            score = (z * p["source"]).sum(2) + (z[:1] * p["destination"]).sum(2)
            score = score + (of_edge * p["edge"]).sum(2)
            alpha = torch.where(score > 0, score, 0.2 * score).softmax(0)
            total = (alpha[:, :, None] * z).sum(0)
            gathered.append((total.mean(0) if layer.average else total.flatten()) + p["bias"])
        else:
            message = src @ p["product.weight"].T + p["product.bias"]
            if isinstance(layer, Gated):
                total = (e.sigmoid() * message).sum(0) / max(1, len(src))
                gathered.append(total @ p["update.weight"].T + p["update.bias"])
            else:
                gathered.append((w * message).sum(0) * factor)
    return torch.stack(gathered)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_its_formula_edge_by_edge(name: str) -> None:
    layer, block = layer_of(name), sampled(GRAPH, range(40), [4]).blocks[0]
    assert block.sources is not None
    twin = layer_of(name).double()
    exact = torch.from_numpy(values(GRAPH)[block.sources]).double().requires_grad_()
    expected = by_edges(twin, block, exact)
    slopes = torch.autograd.grad(expected.square().sum(), [exact, *twin.parameters()])
    for form in (block, tensor_block(block)):
        x = exact.detach().float().requires_grad_()
        result = layer(form, x)
        torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)
        found = torch.autograd.grad(result.square().sum(), [x, *layer.parameters()])
        for mine, theirs in zip(found, slopes, strict=True):
            assert (mine.double() - theirs).abs().max() <= 1e-4 * theirs.abs().max()
    assert (layer.unfused_reason == "") == (name in ("weighted", "gated"))
    place = sampled(GRAPH, range(40), [4], in_place=True).blocks[0]
    with torch.no_grad():
        torch.testing.assert_close(
            layer(place, InPlaceFeatures(values(GRAPH))).double(), expected, rtol=1e-4, atol=1e-4
        )


def test_layers_are_those_of_pyg() -> None:
    geometric = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    graph = with_values(random_graph(60, features=IN, symmetric=False), columns=3)
    topology = graph.topology
    rows = np.repeat(np.arange(60), topology.in_degrees)
    edges = torch.from_numpy(np.stack([topology.indices, rows]).astype(np.int64))
    x, data = torch.from_numpy(values(graph)), torch.from_numpy(topology.edge_features)
    block = sampled(graph, range(60), [-1]).blocks[0]
    gat = EdgeAttentionLayer(IN, 4, 2, 3)
    theirs: Any = geometric.GATConv(IN, 4, heads=2, edge_dim=3)
    with torch.no_grad():
        theirs.lin.weight.copy_(gat.product.weight)
        theirs.lin_edge.weight.copy_(gat.edge_product.weight)
        theirs.att_src[0], theirs.att_dst[0], theirs.att_edge[0] = gat.source, gat.destination, gat.edge
        torch.testing.assert_close(gat(block, x), theirs(x, edges, data), rtol=1e-4, atol=1e-4)
    gine = GineLayer(IN, OUT, 3, epsilon=0.3)
    mlp = torch.nn.Sequential(gine.inner, torch.nn.ReLU(), gine.outer)
    theirs = geometric.GINEConv(mlp, eps=0.3, edge_dim=3)
    with torch.no_grad():
        theirs.lin.weight.copy_(gine.edge.weight)
        theirs.lin.bias.copy_(gine.edge.bias)
        torch.testing.assert_close(gine(block, x), theirs(x, edges, data), rtol=1e-4, atol=1e-4)


def test_what_layers_and_graphs_do_not_have_is_named() -> None:
    bare = awkward_graph()
    rich = replace(GRAPH, topology=replace(GRAPH.topology, edge_weights=None))
    with pytest.raises(UnsupportedModelError, match=r"layer 1 \(Weighted\) reads edge.weight, .* no weights"):
        check_edge_values(stack(layer_of("weighted")), rich)
    with pytest.raises(
        UnsupportedModelError, match=r"layer 1 \(Gated\) reads edge.data, but .* have no features"
    ):
        check_edge_values(stack(layer_of("gated")), bare)
    with pytest.raises(
        UnsupportedModelError, match="has edge_features=3, but the edges of case have 1 features: create"
    ):
        check_edge_values(stack(layer_of("gine")), with_values(bare))
    with pytest.raises(DataError, match="no layer of the model uses the edge features of case"):
        check_edge_values(stack(layer_of("weighted")), GRAPH)
    silent = layer_of("gated")
    silent.edge_features = 0
    with pytest.raises(UnsupportedModelError, match=r"Gated\.edge_features is not set: set it to"):
        silent._read()
    block = sampled(bare, range(9), [-1]).blocks[0]
    x = torch.from_numpy(values(bare)[block.sources])
    for form in (block, tensor_block(block)):
        with pytest.raises(
            UnsupportedModelError, match=r"Weighted reads edge.weight, but .* have no weights"
        ):
            layer_of("weighted")(form, x)


def trained(graph: Graph, model: Any, **settings: Any) -> torch.Tensor:
    given = {"train": {"epochs": 3, "optimizer": "SGD", "lr": 0.05}, "balance": {"policy": "static"}}
    found = hyrt.train(graph, model, **{**given, "evaluate": {"every": 0}, **settings}).model
    return torch.cat([p.detach().flatten() for p in found.parameters()])


@pytest.mark.parametrize("kind", ["gine", "edge-gat"])
def test_a_run_reads_features_or_weights_whoever_trains(kind: str) -> None:
    graph = with_values(random_graph(90, degree=4), columns=2)
    heads = {"heads": 2} if kind == "edge-gat" else {}
    model = {"kind": kind, "hidden": 8, "dropout": 0.3, **heads}
    batches = {"sampler": {"fanout": [3, 4]}, "data": {"batch_size": 16}}
    alone = trained(graph, model, **batches)
    two = trained(graph, model, devices=["cpu:0", "cpu:1"], split=[3, 13], **batches)
    torch.testing.assert_close(two, alone, rtol=1e-5, atol=1e-5)
    everything = {"sampler": {"fanout": [-1, -1]}, "data": {"batch_size": len(graph.split("train"))}}
    whole = trained(graph, model, full_graph=True)
    torch.testing.assert_close(whole, trained(graph, model, **everything), rtol=1e-5, atol=1e-5)
    weights = replace(graph, topology=replace(graph.topology, edge_features=None))
    assert trained(weights, model, full_graph=True).isfinite().all()
    with pytest.raises(ConfigError, match=f"model.kind={kind} needs edge features, but the data"):
        trained(random_graph(90), model)
