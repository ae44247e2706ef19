"""Layers that tell types of edges apart over whole graphs, beside float64 edge by edge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from graphs import random_graph
from hetero_layers import TYPED, assert_step, typed_layer, typed_step, with_types
from test_replica import ALONE, batch_of, replica_of

import hyrt
from hyrt.errors import DataError, UnsupportedModelError
from hyrt.nn import stack
from hyrt.nn.torch_threads import torch_threads
from hyrt.objective.classification import Classification

WIDTH = 6


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


# GNN-FiLM's types are chosen as GG-NN's are: its loops are compiled for blocks alone.
@pytest.mark.parametrize("name", [name for name in TYPED if name != "GNN-FiLM"])
def test_a_step_is_that_of_all_edges(name: str) -> None:
    # Symmetric, so that the transpose is the graph itself, but its types are not.
    graph = with_types(random_graph(120, features=WIDTH, classes=WIDTH, symmetric=name != "relational"))
    model = stack(typed_layer(name, WIDTH, WIDTH), typed_layer(name, WIDTH, WIDTH))
    for targets in (None, 30):
        batch = replace(batch_of(graph, 2, targets), target_weights=None)
        step = replica_of(model, graph, batch, 50, 0).step(batch, Classification(), ALONE)
        assert_step(
            step.loss_sum, step.gradients, typed_step((name, name), model.layers, graph, batch.targets)
        )


def test_the_largest_by_type_of_parallel_edges_is_refused() -> None:
    graph = random_graph(30, features=WIDTH, classes=WIDTH)
    row = int(np.flatnonzero(graph.topology.in_degrees > 1)[0])
    indices = graph.topology.indices.copy()
    first = graph.topology.indptr[row]
    indices[first + 1] = indices[first]
    doubled = with_types(replace(graph, topology=replace(graph.topology, indices=indices)))
    batch, model = batch_of(doubled, 1), stack(typed_layer("largest", WIDTH, WIDTH))
    with pytest.raises(
        UnsupportedModelError,
        match=r"TypedLargest takes the maximum .* requires a graph without repeated edges",
    ):
        replica_of(model, doubled, batch, 50, 0)


@pytest.mark.parametrize("full_graph", [True, False])
def test_a_run_trains_with_types(full_graph: bool) -> None:
    graph = with_types(random_graph(120, features=WIDTH, classes=WIDTH))
    settings = {"kind": "ggnn", "hidden": WIDTH, "layers": 2}
    train = {"epochs": 2}
    result = hyrt.train(graph, {**settings, "options": {"edge_types": 3}}, full_graph=full_graph, train=train)
    assert torch.isfinite(next(result.model.parameters())).all()
    with pytest.raises(
        DataError, match=r"no layer of the model uses the edge types .*options={edge_types: 3}"
    ):
        hyrt.train(graph, settings, full_graph=full_graph, train=train)
    with pytest.raises(UnsupportedModelError, match="RecurrentLayer has edge_types=2, but"):
        hyrt.train(graph, {**settings, "options": {"edge_types": 2}}, full_graph=full_graph, train=train)
