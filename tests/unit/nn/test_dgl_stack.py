"""DGL's convolutions in hyrt: what they compute on a whole graph, gradients included, whoever trains what.

A stand-in takes the place of dgl, most of whose packages need an older torch. The last tests ask dgl itself,
where it can be imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from block_cases import sampled
from dgl_stand_in import Degrees, Heads, Mean, OfEdges, stand_in
from graphs import random_graph, with_values
from torch import Tensor, nn

import hyrt
from hyrt.errors import DataError, StageError, UnsupportedModelError
from hyrt.nn.conv_adapters import to_dgl_block
from hyrt.nn.model_checks import check_edge_values

GRAPH = random_graph(80, features=10)
X = torch.from_numpy(GRAPH.features.values.astype(np.float64))  # type: ignore[attr-defined]
TARGETS = range(5, 70, 3)


@pytest.fixture(autouse=True)
def dgl(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if "real" in request.fixturenames:
        yield None
        return
    monkeypatch.setitem(sys.modules, "dgl", stand_in())
    yield sys.modules["dgl"]


def dense(values: Any = None, *, loops: bool = False) -> Tensor:
    """[V, V] float64, what destinations (rows) take of sources."""
    made = torch.zeros(80, 80, dtype=torch.float64)
    rows = np.repeat(np.arange(80), np.diff(GRAPH.topology.indptr))
    made[rows, GRAPH.topology.indices] = (
        torch.ones(len(rows)).double() if values is None else torch.as_tensor(values).double()
    )
    if loops:
        made += torch.eye(80, dtype=torch.float64)
    return made


def mean_of(conv: Mean, x: Tensor, edges: Tensor) -> Tensor:
    degrees = (dense() != 0).sum(1).clamp(min=1)[:, None]
    made: Tensor = conv.fc_self(x) + conv.fc_neigh(edges @ x / degrees)
    return made


def heads_of(conv: Heads, x: Tensor, edges: Tensor) -> Tensor:
    rows = conv.fc(x).view(80, *conv.attention.shape)
    scores = torch.exp((rows * conv.attention).sum(-1))
    parts = [(edges * s) / (edges * s).sum(1, keepdim=True) for s in scores.T]
    return torch.stack([part @ rows[:, h] for h, part in enumerate(parts)], 1)


def agree(mine: Tensor, theirs: Tensor, model: nn.Module) -> None:
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    parameters = list(model.parameters())
    for a, b in zip(
        *(torch.autograd.grad(s.square().sum(), parameters) for s in (mine, theirs)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_of_all_neighbours_give_the_scores_and_gradients_of_a_whole_graph(weighted: bool) -> None:
    graph = with_values(GRAPH) if weighted else GRAPH
    model = hyrt.from_dgl(Mean(10, 8), Mean(8, 3), activation=torch.tanh).double()
    batch = sampled(graph, TARGETS, [-1, -1])
    mine = model(batch.blocks, X[batch.blocks[0].sources])
    edges = dense(graph.topology.edge_weights)
    hidden = torch.tanh(mean_of(model.convs[0], X, edges))
    agree(mine, mean_of(model.convs[1], hidden, edges)[batch.targets], model)


def test_heads_lie_side_by_side_and_each_vertex_may_get_an_edge_from_itself() -> None:
    """There are vertices without edges: with its own, each has one."""
    model = hyrt.from_dgl(Heads(10, 4, 2), Heads(8, 3, 5), activation=torch.tanh, self_loops=True).double()
    batch = sampled(GRAPH, TARGETS, [-1, -1])
    mine = model(batch.blocks, X[batch.blocks[0].sources])
    edges = dense(loops=True)
    hidden = torch.tanh(heads_of(model.convs[0], X, edges).flatten(1))
    agree(mine, heads_of(model.convs[1], hidden, edges).mean(1)[batch.targets], model)


def test_features_of_edges_go_where_they_are_taken() -> None:
    graph = with_values(GRAPH, 4)
    model = hyrt.from_dgl(OfEdges(10, 3, 4)).double()
    batch = sampled(graph, TARGETS, [-1])
    mine = model(batch.blocks, X[batch.blocks[0].sources])
    conv, rows = model.convs[0], torch.from_numpy(graph.topology.edge_rows).double()
    columns = [dense(value) for value in conv.fc_edge(rows).T]
    theirs = torch.stack([columns[c] @ conv.fc(X)[:, c] for c in range(3)], 1)[batch.targets]
    agree(mine, theirs, model)
    check_edge_values(model, graph)
    with pytest.raises(
        UnsupportedModelError, match=r"\(OfEdges\) expects 4 .* has 0: create it with edge_feats="
    ):
        check_edge_values(model, GRAPH)
    with pytest.raises(DataError, match=r"no convolution uses the edge features.* with edge_feats=4"):
        check_edge_values(hyrt.from_dgl(Mean(10, 3)), graph)
    one = hyrt.from_dgl(OfEdges(10, 3, 1))
    check_edge_values(one, with_values(GRAPH))
    batch = sampled(with_values(GRAPH), TARGETS, [-1])
    assert one(batch.blocks, X[batch.blocks[0].sources].float()).shape == (len(TARGETS), 3)


def test_edges_from_oneself_come_last_and_have_the_weight_and_the_features_one() -> None:
    graph = with_values(GRAPH, 2)
    block = sampled(graph, TARGETS, [4]).blocks[0]
    made = to_dgl_block(block, torch.float32, self_loops=True)
    sources, destinations = made.edges()
    is_loop = np.zeros(len(sources), bool)
    is_loop[block.indptr[1:] + np.arange(block.num_dst)] = True
    assert sources[is_loop].tolist() == destinations[is_loop].tolist() == list(range(block.num_dst))
    assert sources[~is_loop].tolist() == block.columns.tolist()
    for name, held in (("weight", block.edge_weights), ("feat", block.edge_features)):
        assert held is not None
        np.testing.assert_array_equal(made.edata[name][~is_loop], held)
        assert (made.edata[name][is_loop] == 1).all()


def test_an_activation_of_the_convolutions_own_is_the_only_one() -> None:
    model = hyrt.from_dgl(Mean(10, 8, activation=torch.sin), Mean(8, 3)).double()
    batch = sampled(GRAPH, TARGETS, [-1, -1])
    mine = model(batch.blocks, X[batch.blocks[0].sources])
    hidden = torch.sin(mean_of(model.convs[0], X, dense()))
    torch.testing.assert_close(mine, mean_of(model.convs[1], hidden, dense())[batch.targets])


class OverBlocks(nn.Module):
    """As scripts with DGL have it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Mean(10, 8), Mean(8, 3)])

    def forward(self, blocks: Sequence[Any], x: Tensor) -> Tensor:
        for block, layer in zip(blocks, self.layers, strict=True):
            x = layer(block, x[: block.num_src_nodes()]).sin()
        return x


class OverGraph(OverBlocks):
    def forward(self, g: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward([g, g], x)


def weights(model: nn.Module, **settings: Any) -> Tensor:
    result = hyrt.train(
        GRAPH,
        model,
        **{
            "train": {"epochs": 3, "optimizer": "SGD", "lr": 0.1},
            "balance": {"policy": "static", "predict": False},
            "evaluate": {"every": 0},
            **settings,
        },
    )
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])


def stack() -> nn.Module:
    torch.manual_seed(3)
    return hyrt.from_dgl(Mean(10, 8), Heads(8, 3, 2), dropout=0.4, self_loops=True)


def whole() -> nn.Module:
    torch.manual_seed(3)
    return hyrt.from_dgl(OverBlocks())


@pytest.mark.parametrize("made", [stack, whole])
def test_who_trains_dgls_modules_changes_nothing(made: Callable[[], nn.Module]) -> None:
    batches = {"sampler": {"fanout": [3, 4]}, "data": {"batch_size": 16}}
    alone = weights(made(), **batches)
    two = weights(made(), devices=["cpu:0", "cpu:1"], split=[3, 13], **batches)
    torch.testing.assert_close(two, alone, rtol=1e-5, atol=1e-5)
    everything = {"sampler": {"fanout": [-1, -1]}, "data": {"batch_size": len(GRAPH.split("train"))}}
    torch.testing.assert_close(
        weights(made(), full_graph=True), weights(made(), **everything), rtol=1e-5, atol=1e-5
    )


IN_ORDER = r"hyrt\.from_dgl\(model\.layers\[0\], model\.layers\[1\], activation=torch\.relu\)"


def test_modules_that_would_be_given_hyrts_blocks_are_told_of_from_dgl() -> None:
    with pytest.raises(UnsupportedModelError, match=r"OverGraph\.forward takes \(g, x\), but .*" + IN_ORDER):
        hyrt.train(GRAPH, OverGraph())
    with pytest.raises(StageError, match=r"'num_src_nodes'.*.*hyrt\.from_dgl\(model\)"):
        weights(OverBlocks())


@pytest.mark.parametrize(
    ("given", "more", "says"),
    [
        ([], {}, r"from_dgl\(\) needs at least one convolution"),
        (
            [nn.Linear(3, 3)],
            {},
            r"convolution 1 \(Linear\) of from_dgl\(\) is not a convolution from dgl\.nn",
        ),
        ([nn.Sequential(Mean(3, 3))], {}, r"hyrt\.from_dgl\(model\[0\], activation=torch\.relu\)"),
        (
            [Mean(10, 8), Mean(7, 3)],
            {},
            r"convolution 2 \(Mean\) of from_dgl\(\) expects 7 columns, but gets 8",
        ),
        ([Mean(10, 8, feat_drop=0.5)], {}, "split among devices: create it with feat_drop=0 and attn_drop=0"),
        ([Heads(10, 8, 2)], {}, "rejects vertices without incoming edges.* self_loops=True to"),
        ([Degrees(10, 3, norm="both")], {}, r"divides by .*: create it with norm='right'"),
        ([Degrees(10, 3)], {}, r"if other vertices have edges in the mini-batch"),
        ([OverBlocks()], {"dropout": 0.5}, "OverBlocks has its own activation and dropout"),
        ([Mean(10, 3)], {"dropout": 1.0}, r"from_dgl\(\) got dropout=1.0, which is not in \[0, 1\)"),
    ],
)
def test_what_does_not_fit_dgls_side_is_named_before_the_training(
    given: Sequence[Any], more: dict[str, Any], says: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        hyrt.from_dgl(*given, **more)


def test_a_graph_is_no_convolution_and_dgl_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        ndata: dict[str, Tensor] = {}  # noqa: RUF012

    with pytest.raises(UnsupportedModelError, match=r"is a graph: pass graphs to hyrt\.load"):
        hyrt.from_dgl(Graph())
    monkeypatch.setitem(sys.modules, "dgl", None)
    with pytest.raises(UnsupportedModelError, match=r"from_dgl\(\) cannot import the package dgl"):
        hyrt.from_dgl(Mean(10, 3))


@pytest.fixture
def real() -> Any:
    return pytest.importorskip("dgl.nn", reason="dgl is not installed")


REAL: dict[str, tuple[Callable[[Any, int, int], nn.Module], bool]] = {
    "SAGEConv mean": (lambda nn_, f, out: nn_.SAGEConv(f, out, "mean"), False),
    "SAGEConv pool": (lambda nn_, f, out: nn_.SAGEConv(f, out, "pool"), False),
    "SAGEConv gcn": (lambda nn_, f, out: nn_.SAGEConv(f, out, "gcn"), False),
    "GraphConv": (
        lambda nn_, f, out: nn_.GraphConv(f, out, norm="right", allow_zero_in_degree=True),
        False,
    ),
    "GATConv": (lambda nn_, f, out: nn_.GATConv(f, out, 2), True),
    "GATv2Conv": (lambda nn_, f, out: nn_.GATv2Conv(f, out, 2), True),
    "GINConv": (lambda nn_, f, out: nn_.GINConv(nn.Linear(f, out), "sum", learn_eps=True), False),
    "DotGatConv": (lambda nn_, f, out: nn_.DotGatConv(f, out, 2, allow_zero_in_degree=True), True),
}


@pytest.mark.parametrize("kind", REAL)
def test_dgls_own_convolutions_give_what_they_give_for_a_whole_graph(real: Any, kind: str) -> None:
    import dgl as library

    make, self_loops = REAL[kind]
    first = make(real, 10, 8)
    heads = 2 if "Gat" in kind or "GAT" in kind else 1
    model = hyrt.from_dgl(
        first, make(real, 8 * heads, 3), activation=torch.tanh, self_loops=self_loops
    ).double()
    rows = torch.from_numpy(np.repeat(np.arange(80), np.diff(GRAPH.topology.indptr)))
    graph = library.graph((torch.from_numpy(GRAPH.topology.indices).long(), rows), num_nodes=80)
    if self_loops:
        graph = library.add_self_loop(graph)
    batch = sampled(GRAPH, TARGETS, [-1, -1])
    mine = model(batch.blocks, X[batch.blocks[0].sources])
    hidden = torch.tanh(model.convs[0](graph, X).reshape(80, -1))
    scores = model.convs[1](graph, hidden)
    agree(mine, (scores.mean(1) if scores.ndim == 3 else scores)[batch.targets], model)
