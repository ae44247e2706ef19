"""Whole graphs whose edges have weights: steps beside autograd, scores beside blocks, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph, with_values
from test_replica import (
    ALONE,
    OBJECTIVE,
    SIZES,
    assert_equal_steps,
    batch_of,
    by_autograd,
    model_of,
    replica_of,
)

import hyrt
from hyrt.config import build_config
from hyrt.errors import ConfigError, DataError
from hyrt.inference.infer import infer_layerwise
from hyrt.nn.torch_threads import torch_threads
from hyrt.training.setup import PreparedRun

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn", "dropout": 0.3, "input_dropout": 0.2},
    "graphsage": {"kind": "graphsage"},
    "gin": {"kind": "gin"},
}


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "directed"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_that_of_autograd(name: str, symmetric: bool) -> None:
    # Symmetric, so that the transpose is the graph itself, but its weights are not.
    graph = with_values(random_graph(200, seed=1, symmetric=symmetric, **SIZES))
    model = model_of(graph, **MODELS[name])
    for targets in (None, 30):
        batch = batch_of(graph, 2, targets)
        step = replica_of(model, graph, batch, 110, 0).step(batch, OBJECTIVE, ALONE)
        assert_equal_steps(step, by_autograd(model, graph, batch))
    assert batch.blocks[0].edge_weights is graph.topology.edge_weights
    bare = replace(graph, topology=replace(graph.topology, edge_weights=None))
    other = by_autograd(model, bare, batch_of(bare, 2, 30))
    assert step.loss_sum != pytest.approx(other.loss_sum, rel=1e-3)


def test_scores_in_chunks_are_those_of_the_whole_block() -> None:
    graph = with_values(random_graph(200, symmetric=False, **SIZES))
    chosen = np.random.default_rng(0).permutation(200)[:70]
    for name in ("gcn", "graphsage"):
        model = model_of(graph, **MODELS[name]).float()
        batch = batch_of(graph, 2)
        with torch.no_grad():
            expected = model.eval()(batch.blocks, torch.from_numpy(graph.features.matrix)).numpy()
        found = infer_layerwise(model, graph, chosen, ALONE, memory_bytes=100_000)
        np.testing.assert_allclose(found, expected[chosen], rtol=1e-4, atol=1e-4)


def test_weights_of_one_train_what_no_weights_train() -> None:
    graph = random_graph(200)
    ones = np.ones(graph.num_edges, np.float32)
    same = replace(graph, topology=replace(graph.topology, edge_weights=ones))
    weighted = with_values(graph)
    for full_graph in (False, True):
        given: dict[str, Any] = {"full_graph": full_graph, "train": {"epochs": 2}, "devices": ["cpu:0"]}
        results = [hyrt.train(each, model="gcn", **given) for each in (graph, same, weighted)]
        bare, unit, other = (
            torch.cat([p.detach().reshape(-1) for p in result.model.parameters()]) for result in results
        )
        assert (bare - unit).abs().max() < 1e-5
        assert (bare - other).abs().max() > 1e-3


def test_a_model_that_would_leave_weights_out_is_refused() -> None:
    graph = with_values(random_graph(60))
    for model in ("gat", {"kind": "graphsage", "aggregate": "max"}, "commnet"):
        with pytest.raises(DataError, match=r"no layer of the model uses the edge weights of random"):
            hyrt.train(graph, model=model, train={"epochs": 1})


def test_weights_in_chunks_of_sums_are_refused_before_the_run() -> None:
    graph = with_values(random_graph(60))
    for more in ({"fullgraph": {"chunks": 2}, "devices": ["opencl:0"]}, {"devices": ["cpu:0", "opencl:0"]}):
        config = build_config({"sampler": {"kind": "full"}, "model": {"kind": "gcn"}, **more})
        with pytest.raises(
            ConfigError, match=r"'edge_weight'\), which devices that train gcn .*: train on one device"
        ):
            assert PreparedRun(config, graph).model
    assert PreparedRun(build_config({"sampler": {"kind": "full"}, "model": {"kind": "gcn"}}), graph).model
