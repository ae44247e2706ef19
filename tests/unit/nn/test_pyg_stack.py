"""PyG's convolutions in hyrt: what they compute on a whole graph, gradients included, whoever trains what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from block_cases import sampled
from graphs import random_graph, with_values
from torch import Tensor, nn

import hyrt
from hyrt.errors import DataError, UnsupportedModelError
from hyrt.nn.conv_stack import ConvStack
from hyrt.nn.model_checks import check_edge_values

pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")

GRAPH = random_graph(80, features=10)
EDGES = torch.stack(
    [
        torch.from_numpy(GRAPH.topology.indices.astype(np.int64)),
        torch.from_numpy(np.repeat(np.arange(80), np.diff(GRAPH.topology.indptr))),
    ]
)
X = torch.from_numpy(GRAPH.features.values.astype(np.float64))  # type: ignore[attr-defined]

KINDS: dict[str, Callable[[int, int], nn.Module]] = {
    "SAGEConv": lambda f, out: pyg.SAGEConv(f, out),
    "SAGEConv max": lambda f, out: pyg.SAGEConv(f, out, aggr="max", project=True),
    "GATv2Conv": lambda f, out: pyg.GATv2Conv(f, out, heads=2, concat=False),
    "GATConv": lambda f, out: pyg.GATConv(f, out, heads=2, concat=False),
    "TransformerConv": lambda f, out: pyg.TransformerConv(f, out, heads=2, concat=False, beta=True),
    "GraphConv": lambda f, out: pyg.GraphConv(f, out),
    "GINConv": lambda f, out: pyg.GINConv(nn.Sequential(nn.Linear(f, out), nn.Tanh()), train_eps=True),
}


def stack_of(kind: str, **more: Any) -> ConvStack:
    torch.manual_seed(3)
    return hyrt.from_pyg(KINDS[kind](10, 8), KINDS[kind](8, 3), **more)


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_all_neighbours_give_pygs_scores_and_gradients(kind: str) -> None:
    model = stack_of(kind, activation=torch.tanh).double()
    targets = np.arange(5, 70, 3)
    batch = sampled(GRAPH, targets, [-1, -1])
    mine = model(batch.blocks, X[batch.blocks[0].sources])
    hidden = torch.tanh(model.convs[0](X, EDGES))
    theirs = model.convs[1](hidden, EDGES)[batch.targets]
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    parameters = list(model.parameters())
    for a, b in zip(
        *(torch.autograd.grad(s.square().sum(), parameters) for s in (mine, theirs)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


OF_EDGES: dict[str, tuple[int, Callable[[int, int], nn.Module]]] = {
    "edge_weight": (0, lambda f, out: pyg.GraphConv(f, out)),
    "weights as edge_attr": (0, lambda f, out: pyg.GATConv(f, out, edge_dim=1, add_self_loops=False)),
    "edge_attr": (4, lambda f, out: pyg.GATv2Conv(f, out, edge_dim=4, add_self_loops=False)),
    "GINE": (4, lambda f, out: pyg.GINEConv(nn.Sequential(nn.Linear(f, out), nn.Tanh()), edge_dim=4)),
}


@pytest.mark.parametrize("name", OF_EDGES)
def test_weights_and_features_of_edges_go_where_pyg_takes_them(name: str) -> None:
    columns, make = OF_EDGES[name]
    graph = with_values(GRAPH, columns)
    model = hyrt.from_pyg(make(10, 8), make(8, 3), activation=torch.tanh).double()
    batch = sampled(graph, range(5, 70, 3), [-1, -1])
    mine = model(batch.blocks, X[batch.blocks[0].sources])
    rows = graph.topology.edge_rows if name != "edge_weight" else graph.topology.edge_weights
    given = {"edge_weight" if name == "edge_weight" else "edge_attr": torch.from_numpy(rows).double()}
    theirs = model.convs[1](torch.tanh(model.convs[0](X, EDGES, **given)), EDGES, **given)[batch.targets]
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    check_edge_values(model, graph)


def test_convolutions_and_edges_that_do_not_fit_are_named() -> None:
    weighted, rich = with_values(GRAPH), with_values(GRAPH, 2)
    model = hyrt.from_pyg(pyg.GATv2Conv(10, 3, edge_dim=4))
    for graph, columns in ((GRAPH, 0), (weighted, 1), (rich, 2)):
        with pytest.raises(
            UnsupportedModelError, match=rf"\(GATv2Conv\) expects 4 edge features, but random has {columns}"
        ):
            check_edge_values(model, graph)
    bare = hyrt.from_pyg(pyg.SAGEConv(10, 3))
    with pytest.raises(DataError, match="no convolution uses the edge weights"):
        check_edge_values(bare, weighted)
    with pytest.raises(DataError, match="no convolution uses the edge features"):
        check_edge_values(hyrt.from_pyg(pyg.GraphConv(10, 3)), rich)


def weights(kind: str, dropout: float = 0.4, **settings: Any) -> Tensor:
    result = hyrt.train(
        GRAPH,
        stack_of(kind, dropout=dropout),
        **{
            "train": {"epochs": 3, "optimizer": "SGD", "lr": 0.1},
            "balance": {"policy": "static", "predict": False},
            "evaluate": {"every": 0},
            **settings,
        },
    )
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


@pytest.mark.parametrize("kind", ["SAGEConv", "GATv2Conv", "TransformerConv"])
def test_who_trains_changes_nothing(kind: str) -> None:
    batches = {"sampler": {"fanout": [3, 4]}, "data": {"batch_size": 16}}
    alone = weights(kind, **batches)
    two = weights(kind, devices=["cpu:0", "cpu:1"], split=[3, 13], **batches)
    torch.testing.assert_close(two, alone, rtol=1e-5, atol=1e-5)
    everything = {"sampler": {"fanout": [-1, -1]}, "data": {"batch_size": len(GRAPH.split("train"))}}
    whole = weights(kind, full_graph=True)
    torch.testing.assert_close(whole, weights(kind, **everything), rtol=1e-5, atol=1e-5)


def test_a_model_of_pygs_brings_its_activation_and_its_dropout() -> None:
    model = pyg.GraphSAGE(10, 8, 2, 3, dropout=0.25, act="tanh")
    made = hyrt.from_pyg(model)
    assert made.dropout == 0.25
    batch = sampled(GRAPH, range(4, 50), [-1, -1])
    mine = made.eval()(batch.blocks, X[batch.blocks[0].sources].float())
    torch.testing.assert_close(mine, model.eval()(X.float(), EDGES)[batch.targets], rtol=1e-5, atol=1e-5)
    assert {id(p) for p in made.parameters()} == {id(p) for p in model.parameters()}


class WholeGraph(nn.Module):
    """As scripts with PyG have it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = pyg.SAGEConv(10, 8), nn.ModuleList([pyg.SAGEConv(8, 3)])

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        return self.rest[0](self.first(x, edge_index).relu(), edge_index)


def test_a_module_over_all_edges_is_refused_with_what_to_give() -> None:
    said = (
        r"WholeGraph\.forward takes \(x, edge_index\), but hyrt passes \(blocks, x\): "
        r".* hyrt\.from_pyg\(model\.first, model\.rest\[0\], activation=torch\.relu\)"
    )
    with pytest.raises(UnsupportedModelError, match=said):
        hyrt.train(GRAPH, WholeGraph())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "needs at least one convolution"),
        (
            [nn.Linear(3, 3)],
            r"convolution 1 \(Linear\) of from_pyg\(\) is not a convolution from torch_geometric.nn",
        ),
        ([WholeGraph()], r"hyrt\.from_pyg\(model\.first, model\.rest\[0\], activation=torch\.relu\)"),
        ([pyg.SAGEConv(-1, 3)], "has no input width yet: set in_channels"),
        (
            [pyg.SAGEConv(10, 8), pyg.SAGEConv(7, 3)],
            r"convolution 2 \(SAGEConv\) of from_pyg\(\) expects 7 columns, but gets 8",
        ),
        ([pyg.GATv2Conv(10, 8, dropout=0.5)], "so results would depend on .*: create it with dropout=0"),
        (
            [pyg.GCNConv(10, 3)],
            r"convolution 1 \(GCNConv\) of from_pyg\(\) does not work on a pair of source",
        ),
        ([pyg.GraphSAGE(10, 8, 2, 3, jk="cat")], "does not support the jumping knowledge of .*: set jk=None"),
        ([pyg.GraphSAGE(10, 8, 2, 3, norm="layer")], "does not support the norms of .*: set norm=None"),
    ],
)
def test_what_does_not_fit_is_named_before_the_training(given: Sequence[Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        hyrt.from_pyg(*given)


def test_the_depth_of_a_stack_is_that_of_the_mini_batches() -> None:
    with pytest.raises(
        UnsupportedModelError, match="the model has 2 layers, but mini-batches have 3: set sampler"
    ):
        weights("SAGEConv", sampler={"fanout": [2, 2, 2]})
    convs = [pyg.SAGEConv(10, 8), pyg.SAGEConv(8, 8), pyg.SAGEConv(8, 3)]
    result = hyrt.train(GRAPH, hyrt.from_pyg(*convs), train={"epochs": 1}, balance={"predict": False})
    assert set(result.metrics) == {"val", "test"}
