"""Runs for labels of 0 and 1 and for numbers: equal for every split, device and ranks, and resumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hyrt_devices.opencl import OpenclDevice
from sklearn.metrics import average_precision_score, r2_score
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import trained_on

import hyrt
from hyrt.config import build_config
from hyrt.errors import DataError, UnsupportedModelError
from hyrt.graph.graph import Graph
from hyrt.inference.infer import infer_layerwise
from hyrt.runtime.workers import Workers
from hyrt.telemetry.events import Event, RunStarted, StepMetrics
from hyrt.training.build_run import build_run
from hyrt.training.checkpoint import load_newest_checkpoint
from hyrt.training.train import Training

needs_opencl = pytest.mark.skipif(
    not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device"
)
RNG = np.random.default_rng(8)
PLAIN = random_graph(150, features=10)


def with_labels(labels: np.ndarray) -> Graph:
    return replace(PLAIN, name="random", vertices=replace(PLAIN.vertices, labels=labels))


def flags() -> np.ndarray:
    found = (PLAIN.labels[:, None] == [0, 1, 1, 2]).astype(np.int8)
    found[RNG.random(found.shape) < 0.1] = -1
    found[:, 0] = np.maximum(found[:, 0], 0)  # Something is known of every vertex.
    return found


FLAGS = with_labels(flags())
NUMBERS = with_labels((PLAIN.features.values[:, :2] @ [[1.0, 2.0], [0.5, -1.0]] + 3).astype(np.float32))  # type: ignore[attr-defined]
NUMBER = with_labels(NUMBERS.labels[:, 0].astype(np.float64))
GRAPHS = {"flags": FLAGS, "numbers": NUMBERS, "a number": NUMBER}
kinds = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)


def settings(**sections: Any) -> dict[str, Any]:
    batches = {} if sections.get("sampler", {}).get("kind") == "full" else {"data": {"batch_size": 32}}
    return {
        "model": {"kind": "graphsage", "hidden": 8, "layers": 2, "dropout": 0.3},
        **batches,
        "sampler": {"fanout": [4, 3]},
        "train": {"epochs": 4, "optimizer": "SGD", "lr": 0.05, "weight_decay": 0.0},
        "balance": {"policy": "static", "predict": False},
        "devices": ["cpu:0"],
        **sections,
    }


def trained(graph: Graph, **sections: Any) -> tuple[np.ndarray, list[Event], Any]:
    heard: list[Event] = []
    training = Training(build_run(build_config(settings(**sections)), graph, emit=heard.append))
    result = training.run()
    weights = torch.cat([p.detach().flatten().double() for p in result.model.parameters()])
    return weights.numpy(), heard, result


def metrics_of(heard: Sequence[Event]) -> list[dict[str, float]]:
    return [dict(event.training_metrics) for event in heard if isinstance(event, StepMetrics)]


BATCHES, WHOLE = {"fanout": [4, 3]}, {"kind": "full"}
TRAINERS, OPENCL = {"devices": ["cpu:0", "cpu:1"], "split": [5, 27]}, {"devices": ["opencl"]}


@pytest.mark.parametrize(
    ("graph", "sampler", "devices"),
    [
        pytest.param(FLAGS, BATCHES, TRAINERS, id="flags, batches, two trainers"),
        pytest.param(NUMBERS, BATCHES, TRAINERS, id="numbers, batches, two trainers"),
        pytest.param(NUMBER, BATCHES, TRAINERS, id="a number, batches, two trainers"),
        pytest.param(FLAGS, BATCHES, OPENCL, marks=needs_opencl, id="flags, batches, opencl"),
        pytest.param(FLAGS, WHOLE, OPENCL, marks=needs_opencl, id="flags, whole graph, opencl"),
        pytest.param(NUMBERS, WHOLE, OPENCL, marks=needs_opencl, id="numbers, whole graph, opencl"),
        pytest.param(NUMBER, BATCHES, OPENCL, marks=needs_opencl, id="a number, batches, opencl"),
    ],
)
def test_who_trains_changes_nothing(graph: Graph, sampler: dict[str, Any], devices: dict[str, Any]) -> None:
    alone, heard, result = trained(graph, sampler=sampler)
    weights, others, other = trained(graph, sampler=sampler, **devices)
    np.testing.assert_allclose(weights, alone, rtol=1e-5, atol=1e-5)
    for one, two in zip(metrics_of(heard), metrics_of(others), strict=True):
        assert one == pytest.approx(two, rel=1e-4)
    assert other.metrics["test"] == pytest.approx(result.metrics["test"], rel=1e-4)


@kinds
def test_ranks_change_nothing(graph: Graph) -> None:
    alone, _, result = trained(graph)
    homes = RNG.integers(0, 2, graph.num_vertices).astype(np.int32)
    for ranks in results_of(2, lambda ranks: trained_on(ranks, graph, homes, settings())):
        weights = torch.cat([p.detach().flatten().double() for p in ranks[0].model.parameters()])
        np.testing.assert_allclose(weights.numpy(), alone, rtol=1e-5, atol=1e-5)
        assert ranks[0].metrics["test"] == pytest.approx(result.metrics["test"], rel=1e-5)


@kinds
def test_a_step_of_the_whole_graph_is_the_definition_in_float64(graph: Graph) -> None:
    """One step of plain SGD from the same weights, by autograd over a dense matrix."""
    given = settings(
        model={"kind": "graphsage", "hidden": 8, "layers": 1},
        sampler={"kind": "full"},
        train={"epochs": 1, "optimizer": "SGD", "lr": 0.5, "weight_decay": 0.0},
    )
    training = Training(build_run(build_config(given), graph))
    layer = training.parts.learner.model
    before = {name: p.detach().double().clone() for name, p in layer.named_parameters()}
    leaves = {name: p.requires_grad_() for name, p in before.items()}
    topology = graph.topology
    dense = np.zeros((graph.num_vertices, graph.num_vertices))
    rows = np.repeat(np.arange(graph.num_vertices), np.diff(topology.indptr))
    dense[rows, topology.indices] = 1
    mean = torch.from_numpy(dense / np.maximum(dense.sum(1, keepdims=True), 1))
    x = torch.from_numpy(graph.features.values.astype(np.float64))  # type: ignore[attr-defined]
    weight = next(p for p in leaves.values() if p.ndim == 2)
    bias = next(p for p in leaves.values() if p.ndim == 1)
    joined = torch.cat([x, mean @ x], 1) if weight.shape[1] == 2 * x.shape[1] else None
    assert joined is not None
    targets = graph.split("train")
    scores = (joined @ weight.T + bias)[targets]
    labels = graph.labels[targets].reshape(len(targets), -1).astype(np.float64)
    known = torch.from_numpy(labels >= 0 if graph is FLAGS else ~np.isnan(labels))
    y = torch.from_numpy(labels)
    losses = (
        torch.nn.functional.binary_cross_entropy_with_logits(scores, y.clamp(min=0), reduction="none")
        if graph is FLAGS
        else (scores - y) ** 2
    )
    loss = losses[known].mean()
    loss.backward()  # type: ignore[no-untyped-call]
    training.run()
    for name, parameter in training.parts.learner.model.named_parameters():
        wanted = before[name].detach() - 0.5 * before[name].grad  # type: ignore[operator]
        np.testing.assert_allclose(parameter.detach().numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.bits
@kinds
def test_a_resumed_run_has_the_same_bits_and_evaluations_are_those_of_the_scores(
    graph: Graph, tmp_path: Path
) -> None:
    whole, heard, result = trained(graph)
    stops = iter([False] * 5 + [True] * 100)
    parts = build_run(
        build_config(settings()), graph, checkpoints=tmp_path / "c", should_stop=lambda: next(stops)
    )
    Training(parts).run()
    again = Training(build_run(build_config(settings()), graph, checkpoints=tmp_path / "c"))
    again.resume(load_newest_checkpoint(tmp_path / "c", print))
    resumed = torch.cat([p.detach().flatten().double() for p in again.run().model.parameters()])
    np.testing.assert_array_equal(resumed.numpy(), whole)
    [started] = [event for event in heard if isinstance(event, RunStarted)]
    assert ("multilabel" if graph is FLAGS else "regression") in started.model
    test = graph.split("test")
    with Workers(1, "test") as workers:
        scores = infer_layerwise(result.model, graph, test, workers, memory_bytes=1 << 26)
    if graph is FLAGS:
        known = graph.labels[test] >= 0
        wanted = [
            average_precision_score(graph.labels[test][known[:, c], c], scores[known[:, c], c])
            for c in range(4)
        ]
        found = result.metrics["test"]["mean_average_precision"]
        assert found == pytest.approx(np.mean(wanted), abs=1e-6)
    else:
        labels = graph.labels[test].reshape(len(test), -1)
        assert result.metrics["test"]["r2"] == pytest.approx(r2_score(labels, scores), rel=1e-4)


def test_devices_that_cannot_say_so() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"null:0 does not support objective 'multilabel', .* such as cpu"
    ):
        hyrt.train(FLAGS, config=build_config(settings(devices=["null"])))


def test_a_graph_without_labels_says_what_to_do() -> None:
    unlabelled = with_labels(np.full(150, -1))
    with pytest.raises(DataError, match="vertex 3 is in the split but has no label: set its mask to False"):
        hyrt.train(unlabelled, "gcn")
    masks = {name: np.zeros_like(mask) for name, mask in unlabelled.masks.items()}
    unlabelled = replace(unlabelled, vertices=replace(unlabelled.vertices, masks=masks))
    with pytest.raises(DataError, match=r"random: no vertex has a label.*train\.objective=links"):
        hyrt.train(unlabelled, "gcn")
    hyrt.train(unlabelled, "gcn", train={"objective": "links", "epochs": 1})
