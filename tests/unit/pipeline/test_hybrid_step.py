"""The split does not change the mathematics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from graphs import dense_features, random_graph
from unit.nn.dense_reference import parameters_of, scores

from hyrt.config import build_config
from hyrt.errors import DivergenceError
from hyrt.graph.row_source import DenseFeatures
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.telemetry.events import StepMetrics
from hyrt.training.build_run import build_run
from hyrt.training.setup import build_model
from hyrt.training.train import Training


def train(graph, split=None, **sections):
    devices = ["cpu"] if split is None else [f"cpu:{i}" for i in range(len(split))]
    settings = {
        "data": {"batch_size": 24},
        "sampler": {"fanout": [4, 3]},
        "evaluate": {"every": 0},
        "devices": devices,
        "split": split,
        **sections,
    }
    settings["model"] = {"hidden": 16, **sections.get("model", {})}
    settings["train"] = {"epochs": 4, "lr": 0.01, **sections.get("train", {})}
    losses = []

    def emit(event) -> None:
        if isinstance(event, StepMetrics):
            losses.extend(event.losses)

    training = Training(build_run(build_config(settings), graph, emit=emit))
    training.run()
    # The weights of the last step, not of the best evaluation.
    return training, losses


def final_weights(training: Training) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in training.parts.learner.parameters]).numpy()


@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gin", "gat"])
@pytest.mark.parametrize("split", [[12, 12], [1, 23], [0, 24], [5, 19]])
def test_two_trainers_equal_one_on_the_union_batch(kind: str, split: list[int]) -> None:
    graph = random_graph(vertices=240)
    model = {"kind": kind, "dropout": 0.3}
    one, one_losses = train(graph, model=model, train={"optimizer": "SGD", "lr": 0.02})
    two, two_losses = train(graph, split, model=model, train={"optimizer": "SGD", "lr": 0.02})
    assert len(one_losses) >= 20
    np.testing.assert_allclose(two_losses, one_losses, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(final_weights(two), final_weights(one), atol=1e-5)


def test_equal_runs_give_equal_bits() -> None:
    graph = random_graph()
    first, first_losses = train(graph, [7, 17], model={"dropout": 0.2})
    second, second_losses = train(graph, [7, 17], model={"dropout": 0.2})
    assert first_losses == second_losses
    assert np.array_equal(final_weights(first), final_weights(second))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gin", "gat"])
def test_threads_do_not_change_a_bit(kind: str, sparse: bool) -> None:
    """Every stage and every layer has rows for several chunks, the largest of which are 1024 rows."""
    graph = random_graph(vertices=3000, sparse=sparse)
    assert len(graph.split("train")) > 1200
    settings = {
        "data": {"batch_size": 1200},
        "model": {"kind": kind, "norm": "layer", "residual": True, "dropout": 0.2},
        "train": {"epochs": 2},
    }
    runs = []
    for threads in (1, 2, 4):
        runtime = {"sample_threads": threads, "load_threads": threads, "train_threads": threads}
        training, losses = train(graph, runtime=runtime, **settings)
        runs.append((losses, final_weights(training)))
    first_losses, first_weights = runs[0]
    assert len(first_losses) == 4
    for losses, weights in runs[1:]:
        assert losses == first_losses
        assert np.array_equal(weights, first_weights)


def test_serial_and_pipelined_runs_are_equal() -> None:
    graph = random_graph()
    _, pipelined = train(graph)
    _, serial = train(graph, runtime={"pipelined": False})
    assert pipelined == serial


@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gin", "gat"])
def test_fused_loading_changes_rounding_only(kind: str) -> None:
    graph = random_graph()
    sgd = {"optimizer": "SGD", "lr": 0.02}
    fused, _ = train(graph, model={"kind": kind}, train=sgd)
    plain, _ = train(graph, model={"kind": kind}, train=sgd, runtime={"fuse_load": False})
    np.testing.assert_allclose(final_weights(fused), final_weights(plain), atol=1e-5)


@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gin", "gat"])
def test_sparse_features_train_like_dense_ones(kind: str) -> None:
    sparse = random_graph(sparse=True)
    dense = sparse.with_features(DenseFeatures(dense_features(sparse).astype(np.float32)))
    model = {"kind": kind, "input_dropout": 0.2, "residual": True}
    # Steps this small do not let rounding grow: what is drawn otherwise is many times the tolerance.
    sgd = {"optimizer": "SGD", "lr": 0.001}
    for seed in (0, 1):
        a, _ = train(sparse, model=model, train=sgd, seed=seed)
        b, _ = train(dense, model=model, train=sgd, seed=seed)
        np.testing.assert_allclose(final_weights(a), final_weights(b), atol=1e-6)
        undrawn, _ = train(dense, model={**model, "input_dropout": 0.0}, train=sgd, seed=seed)
        assert np.abs(final_weights(a) - final_weights(undrawn)).max() > 2e-5


@pytest.mark.parametrize("split", [None, [9, 15]])
def test_class_weights_are_means_over_targets(split: list[int] | None) -> None:
    """Losses of SGD against dense float64 steps on sum_i w[y_i] CE_i / n, w inverse to a class's share."""
    graph = random_graph()
    rare = np.flatnonzero(graph.labels == 0)
    graph.labels[rare[len(rare) // 4 :]] = 1
    training, losses = train(
        graph,
        split,
        model={"dropout": 0.0},
        train={
            "class_weights": "balanced",
            "optimizer": "SGD",
            "lr": 0.05,
            "weight_decay": 0.0,
            "epochs": 1,
        },
    )
    targets = graph.split("train")
    counts = np.array([(graph.labels[targets] == c).sum() for c in range(3)])
    assert counts.max() > 3 * counts.min() > 0
    weights = torch.from_numpy(len(targets) / (3 * counts))

    p = parameters_of(build_model(training.parts.config, graph))
    sampler = NeighborSampler(graph, targets, [4, 3], 24, seed=0)
    expected = []
    for step in range(sampler.steps_per_epoch()):
        batch = sampler.sample(step, sampler.units(step), Workers(1, "t"), in_place=False)
        rows = torch.from_numpy(dense_features(graph)[batch.blocks[0].sources])
        out = scores("graphsage-mean", batch.blocks, rows, p)
        labels = torch.from_numpy(batch.labels)
        each = -out.log_softmax(1)[torch.arange(len(labels)), labels]
        loss = (weights[labels] * each).sum() / len(labels)
        gradients = torch.autograd.grad(loss, list(p.values()))
        with torch.no_grad():
            for value, gradient in zip(p.values(), gradients, strict=True):
                value -= 0.05 * gradient
        expected.append(loss.item())
    assert len(expected) > 3
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_a_loss_that_is_not_finite_stops_before_the_update() -> None:
    graph = random_graph()
    training = Training(
        build_run(
            build_config(
                {
                    "data": {"batch_size": 24},
                    "train": {"optimizer": "SGD", "lr": 1e30, "epochs": 3},
                    "seed": 7,
                }
            ),
            graph,
        )
    )
    with pytest.raises(DivergenceError, match=r"cpu:0 is not finite at step \d+ \(seed 7\)"):
        training.run()
