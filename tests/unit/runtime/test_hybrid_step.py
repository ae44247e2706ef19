"""The split does not change the mathematics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from graphs import random_graph

from hyrt.config import build_config
from hyrt.errors import Diverged
from hyrt.runtime.events import StepGroup
from hyrt.runtime.train import Training


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
        if isinstance(event, StepGroup):
            losses.extend(event.losses)

    training = Training(build_config(settings), graph, emit=emit)
    training.run()
    # The weights of the last step, not of the best evaluation.
    return training, losses


def final_weights(training: Training) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in training._parameters]).numpy()


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


@pytest.mark.parametrize("threads", [2, 4])
def test_sampler_and_loader_threads_do_not_change_a_bit(threads: int) -> None:
    graph = random_graph()
    one, one_losses = train(graph, runtime={"sample_threads": 1, "load_threads": 1, "train_threads": 1})
    many, many_losses = train(
        graph, runtime={"sample_threads": threads, "load_threads": threads, "train_threads": threads}
    )
    assert one_losses == many_losses
    assert np.array_equal(final_weights(one), final_weights(many))


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
    from dataclasses import replace

    from graphs import dense_features

    from hyrt.graph.graph import DenseFeatures

    dense = replace(sparse, features=DenseFeatures(dense_features(sparse).astype(np.float32)))
    model = {"kind": kind, "input_dropout": 0.2, "residual": True}
    sgd = {"optimizer": "SGD", "lr": 0.01}
    a, _ = train(sparse, model=model, train=sgd)
    b, _ = train(dense, model=model, train=sgd)
    np.testing.assert_allclose(final_weights(a), final_weights(b), atol=2e-5)


def test_class_weights_are_means_over_targets() -> None:
    """Weighted steps equal torch's own weighted loss, up to the weights' normalisation."""
    graph = random_graph()
    _, losses = train(graph, train={"class_weights": "balanced"})
    _, plain = train(graph)
    assert losses != plain
    assert all(np.isfinite(losses))


def test_a_loss_that_is_not_finite_stops_before_the_update() -> None:
    graph = random_graph()
    training = Training(
        build_config(
            {"data": {"batch_size": 24}, "train": {"optimizer": "SGD", "lr": 1e30, "epochs": 3}, "seed": 7}
        ),
        graph,
    )
    with pytest.raises(Diverged, match=r"cpu:0 is not finite at step \d+ \(seed 7\)"):
        training.run()
