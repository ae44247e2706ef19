"""Layers of a user's own over a whole graph in chunks of rows, beside autograd over blocks of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from graphs import random_graph
from saga_layers import layer_of
from test_replica import ALONE, OBJECTIVE, assert_equal_steps, batch_of, by_autograd, inputs_of, replica_of

import hyrt
from hyrt.fullgraph.plan import is_decomposable
from hyrt.graph.graph import Graph
from hyrt.nn import stack
from hyrt.nn.model import GNN
from hyrt.nn.torch_threads import torch_threads
from hyrt.runtime.workers import Workers

LAYERS = ["G-GCN", "GAT", "EdgeConv", "perceptron", "GraphSAGE"]


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def model_of(name: str, graph: Graph, *, all_of_it: bool = False) -> GNN:
    # Of equal widths, so that the loops of all layers are the same.
    last = layer_of(name, 8, 8)
    layers = [layer_of(name, graph.num_features, 8), last]
    if all_of_it:
        return stack(*layers, norm="layer", residual=True, dropout=0.3, input_dropout=0.2).double()
    return stack(*layers).double()


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "directed"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_step_is_that_of_autograd(name: str, symmetric: bool) -> None:
    graph = random_graph(300, features=8, classes=8, symmetric=symmetric)
    model = model_of(name, graph, all_of_it=symmetric)
    assert is_decomposable(model)
    for targets in (None, 30):
        batch = batch_of(graph, 2, targets)
        expected = by_autograd(model, graph, batch)
        for rows in (110, 1000):
            replica = replica_of(model, graph, batch, rows, 0)
            for _ in range(2):  # The second step has the memory of the first.
                assert_equal_steps(replica.step(batch, OBJECTIVE, ALONE), expected)


def test_layers_that_share_parts_have_the_sum_of_their_gradients() -> None:
    """A layer that stands in a model twice, and a product that two layers share."""
    graph = random_graph(300, features=8, classes=8)
    first, middle, last = (layer_of("G-GCN", 8, 8) for _ in range(3))
    last.gate_src = middle.gate_src
    model = stack(first, middle, middle, last).double()
    batch = batch_of(graph, 4)
    step = replica_of(model, graph, batch, 110, 0).step(batch, OBJECTIVE, ALONE)
    assert_equal_steps(step, by_autograd(model, graph, batch))


@pytest.mark.parametrize("name", ["G-GCN", "perceptron"])
def test_sparse_features_stay_sparse(name: str) -> None:
    graph = random_graph(300, sparse=True, features=8, classes=8, symmetric=False)
    model, batch = model_of(name, graph), batch_of(graph, 2)
    step = replica_of(model, graph, batch, 110, 0).step(batch, OBJECTIVE, ALONE)
    assert_equal_steps(step, by_autograd(model, graph, batch))


@pytest.mark.parametrize("name", ["G-GCN", "GAT", "EdgeConv"])
def test_threads_change_no_bit_and_scores_are_those_of_the_model(name: str) -> None:
    graph = random_graph(2500, degree=20, features=8, classes=8, symmetric=False)
    model, batch = model_of(name, graph), batch_of(graph, 2)
    steps = []
    for count in (1, 3):
        with Workers(count, "team") as team:
            replica = replica_of(model, graph, batch, 700, 0)
            steps.append(replica.step(batch, OBJECTIVE, team))
    assert steps[0].loss_sum == steps[1].loss_sum
    assert all(torch.equal(a, b) for a, b in zip(steps[0].gradients, steps[1].gradients, strict=True))
    chosen = np.arange(0, 2500, 7).astype(np.int32)
    with torch.no_grad():
        expected = model.eval()(batch.blocks, inputs_of(graph)).numpy()[chosen]
    np.testing.assert_allclose(replica.compute_scores(chosen, ALONE), expected, rtol=1e-5, atol=1e-5)


def test_a_run_trains_them() -> None:
    graph = hyrt.load("synthetic:tiny")
    torch.manual_seed(0)
    model = stack(layer_of("G-GCN", graph.num_features, 16), layer_of("GraphSAGE", 16, graph.num_classes))
    result = hyrt.train(graph, model, full_graph=True, train={"epochs": 30, "lr": 0.02}, seed=1)
    assert result.metrics["test"]["accuracy"] > 0.6
