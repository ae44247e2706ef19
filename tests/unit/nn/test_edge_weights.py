"""Weights of edges in every aggregation, beside dense float64 and PyG's layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from block_cases import awkward_graph, sampled, sparse_of, tensor_block, values
from graphs import dense_weights, with_values

from hyrt.config import build_config
from hyrt.errors import ConfigError, DataError, UnsupportedModelError
from hyrt.graph.graph import Graph
from hyrt.nn.architecture import Aggregation, Architecture
from hyrt.nn.layers import GcnLayer, GinLayer, SageLayer
from hyrt.nn.model import GNN
from hyrt.nn.model_checks import check_edge_values
from hyrt.nn.operators.aggregate import aggregate
from hyrt.nn.torch_threads import torch_threads
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.training.setup import build_sampler

GRAPH = with_values(awkward_graph())
ALONE = Workers(1, "test")
KINDS = [
    Aggregation("mean", "none"),
    Aggregation("mean", "concat"),
    Aggregation("sum", "add", 0.3),
    Aggregation("gcn", "none"),
    Aggregation("gcn", "add"),
]


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def by_hand(what: Aggregation, graph: Graph, block: Block, x: torch.Tensor) -> torch.Tensor:
    """The aggregation in float64, of the vertices' numbers and the weights of the whole graph."""
    dense, sources = dense_weights(graph), block.sources
    assert sources is not None
    degrees, sums = (dense > 0).sum(1), dense.sum(1)
    matrix = np.zeros((block.num_dst, block.num_src))
    for i, v in enumerate(block.destinations):
        edges = range(block.indptr[i], block.indptr[i + 1])
        for e in edges:
            undone = degrees[v] / len(edges) if block.weights is None else block.weights[e]
            matrix[i, block.columns[e]] += undone * dense[v, sources[block.columns[e]]]
        if what.reduce == "mean" and sums[v]:
            matrix[i] /= sums[v]
        if what.reduce == "gcn":
            matrix[i] /= np.sqrt((sums[v] + 1) * (sums[sources] + 1))
        if what.self_path == "add":
            matrix[i, i] += 1 / (sums[v] + 1) if what.reduce == "gcn" else 1 + what.epsilon
    total = torch.from_numpy(matrix) @ x
    return torch.cat([x[: block.num_dst], total], 1) if what.self_path == "concat" else total


def batch_of(kind: str, graph: Graph = GRAPH, layers: int = 2, **settings: Any) -> list[Block]:
    data = {"batch_size": 30}
    fanout = {} if kind == "saint" else {"fanout": [5, 3][:layers]}
    sampler = {"kind": kind, **fanout, **settings}
    config = build_config({"sampler": sampler, "model": {"layers": layers, "kind": "gcn"}, "data": data})
    built = build_sampler(config, graph, graph.split("train"))
    return built.sample(3, built.units(3), ALONE, in_place=False).blocks


SAMPLERS = (
    "neighbor",
    "labor",
    "labor-1",
    "weighted",
    "fastgcn",
    "ladies",
    "saint",
    "shadow",
    "cluster",
)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_blocks_of_every_sampler_have_the_weights_and_features_of_their_edges(kind: str) -> None:
    graph = with_values(awkward_graph(), columns=2)
    dense, sums = dense_weights(graph), dense_weights(graph).sum(1)
    topology = graph.topology
    assert topology.edge_features is not None
    places = {weight: k for k, weight in enumerate(topology.edge_weights.tolist())}
    assert len(places) == graph.num_edges
    settings = {"labor-1": {"iterations": 1}, "cluster": {"parts": 4}}.get(kind, {})
    blocks = batch_of(kind.split("-")[0], graph, **settings)
    assert sum(block.num_edges for block in blocks) > 50
    for block in blocks:
        rows = np.repeat(block.destinations, np.diff(block.indptr))
        expected = dense[rows, block.sources[block.columns]].astype(np.float32)
        np.testing.assert_array_equal(block.edge_weights, expected)
        numbers = [places[weight] for weight in block.edge_weights.tolist()]
        np.testing.assert_array_equal(block.edge_features, topology.edge_features[numbers])
        np.testing.assert_allclose(block.weighted_degrees, sums[block.destinations], rtol=1e-6)
        np.testing.assert_allclose(block.source_weighted_degrees, sums[block.sources], rtol=1e-6)


@pytest.mark.parametrize("what", KINDS, ids=lambda what: f"{what.reduce}-{what.self_path}")
@pytest.mark.parametrize("kind", ["neighbor", "weighted"])
def test_an_aggregation_is_its_formula(what: Aggregation, kind: str) -> None:
    block = batch_of(kind)[0]
    x = torch.from_numpy(values(GRAPH)[block.sources])
    exact = x.double().requires_grad_()
    expected = by_hand(what, GRAPH, block, exact)
    along = torch.from_numpy(np.random.default_rng(0).standard_normal(expected.shape))
    (slope,) = torch.autograd.grad(expected, exact, along)
    for form in (block, tensor_block(block)):
        rows = x.clone().requires_grad_()
        result = aggregate(form, rows, what)
        torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)
        (found,) = torch.autograd.grad(result, rows, along.float())
        torch.testing.assert_close(found.double(), slope, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [SageLayer, GcnLayer, GinLayer])
def test_sparse_rows_are_multiplied_first_with_weights_too(make: Any) -> None:
    block = batch_of("neighbor")[0]
    layer, x = make(GRAPH.num_features, 4), values(GRAPH)[block.sources]
    torch.testing.assert_close(
        layer(block, sparse_of(x)), layer(block, torch.from_numpy(x)), rtol=1e-4, atol=1e-4
    )


def test_sampled_sums_are_unbiased() -> None:
    """Means over steps of what is sampled, for each way to draw, beside the sums over all edges."""
    x, everyone = torch.from_numpy(values(GRAPH)[:, :2]), list(range(90))
    whole = sampled(GRAPH, everyone, [-1]).blocks[0]
    drawn = {
        "neighbor": {"fanout": [4]},
        "labor": {"fanout": [4]},
        "weighted": {"fanout": [4], "scale_weights": False},
    }
    for kind, settings in drawn.items():
        config = build_config(
            {"sampler": {"kind": kind, **settings}, "model": {"layers": 1}, "data": {"batch_size": 90}}
        )
        sampler = build_sampler(config, GRAPH, np.array(everyone))
        for what in (Aggregation("mean", "none"), Aggregation("gcn", "add")):
            exact = aggregate(whole, x[whole.sources], what)
            order = np.argsort(whole.destinations)
            found = []
            for step in range(300):
                block = sampler.sample(step, np.arange(90, dtype=np.int32), ALONE, in_place=False).blocks[0]
                found.append(aggregate(block, x[block.sources], what))
            each = torch.stack(found).double()
            error = each.std(0) / np.sqrt(len(found)) + 1e-6
            assert ((each.mean(0) - exact[order]) / error).abs().max() < 5.5, (kind, what)


def test_layers_are_those_of_pyg() -> None:
    geometric = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    adjacency = dense_weights(GRAPH)
    np.fill_diagonal(adjacency, 0)  # PyG gives a self loop that is there no second one.
    topology = GRAPH.topology
    kept = topology.indices != np.repeat(np.arange(90), np.diff(topology.indptr))
    rows, columns = np.nonzero(adjacency)
    graph = replace(
        GRAPH,
        topology=replace(
            topology,
            indptr=np.concatenate([[0], np.cumsum((adjacency > 0).sum(1))]),
            indices=topology.indices[kept],
            edge_weights=topology.edge_weights[kept],
        ),
    )
    edges = torch.from_numpy(np.stack([columns, rows]))
    weight = torch.from_numpy(adjacency[rows, columns].astype(np.float32))
    x = torch.from_numpy(values(graph))
    block = sampled(graph, range(90), [-1]).blocks[0]
    gcn, theirs = GcnLayer(10, 5), geometric.GCNConv(10, 5)
    with torch.no_grad():
        theirs.lin.weight.copy_(gcn.weight)
        torch.testing.assert_close(gcn(block, x), theirs(x, edges, weight), rtol=1e-4, atol=1e-5)
    sage, theirs = SageLayer(10, 5, reduce="sum"), geometric.GraphConv(10, 5)
    with torch.no_grad():
        theirs.lin_root.weight.copy_(sage.weight[:, :10])
        theirs.lin_rel.weight.copy_(sage.weight[:, 10:])
        theirs.lin_rel.bias.copy_(sage.bias)
        torch.testing.assert_close(sage(block, x), theirs(x, edges, weight), rtol=1e-4, atol=1e-4)


def model_of(kind: str, reduce: Any) -> GNN:
    return GNN(Architecture(kind=kind, in_features=10, hidden=4, num_classes=3, aggregate=reduce))


def test_what_nothing_would_read_is_refused() -> None:
    bare = awkward_graph()
    largest, mean, gcn = (
        model_of(*each) for each in (("graphsage", "max"), ("graphsage", "mean"), ("gcn", "mean"))
    )
    with pytest.raises(DataError, match=r"no layer of the model uses the edge weights of case"):
        check_edge_values(largest, GRAPH)
    check_edge_values(largest, GRAPH, sampler_uses_weights=True)
    check_edge_values(mean, GRAPH)
    check_edge_values(largest, bare)
    with pytest.raises(DataError, match=r"no layer of the model uses the edge features of case"):
        check_edge_values(gcn, with_values(bare, columns=2))
    block = batch_of("neighbor")[0]
    with pytest.raises(UnsupportedModelError, match="in layer 1, a maximum would ignore the edge weights"):
        aggregate(block, torch.from_numpy(values(GRAPH)[block.sources]), "max")
    with pytest.raises(ConfigError, match=r"remove sampler\.degrees"):
        batch_of("neighbor", degrees="sampled")
