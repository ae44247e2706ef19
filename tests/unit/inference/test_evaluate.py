from __future__ import annotations

import numpy as np
import pytest
import torch
from graphs import random_graph

from hyrt.config import build_config
from hyrt.errors import ConfigError
from hyrt.inference.evaluate import Evaluator
from hyrt.machine.workers import Workers
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN


def two_class_graph():
    return random_graph(classes=2)


def test_roc_auc_needs_both_classes_among_the_validation_vertices() -> None:
    graph = two_class_graph()
    config = build_config({"train": {"metric": "roc_auc"}})
    assert Evaluator(config, graph, None).metric == "roc_auc"
    graph.labels[graph.split("val")] = 1
    with pytest.raises(ConfigError, match=r"random, split 0: .* both classes .* all of class 1"):
        Evaluator(config, graph, None)
    # Another metric is not in the way.
    Evaluator(build_config({}), graph, None)


def test_a_split_without_validation_vertices_is_warned_of() -> None:
    graph = two_class_graph()
    assert Evaluator(build_config({}), graph, None).warning is None
    graph.masks["val"][:] = False
    evaluator = Evaluator(build_config({"train": {"patience": 3, "metric": "roc_auc"}}), graph, None)
    assert evaluator.warning is not None
    assert "split 0 has no validation vertices" in evaluator.warning
    assert "train.patience has no effect" in evaluator.warning
    model = GNN(Architecture(in_features=12, hidden=8, num_classes=2))
    assert list(evaluator.evaluate(model, Workers(1, "t"))) == ["test"]


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_each_split_is_scored_by_its_own_rows(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    graph = random_graph(classes=3)
    val, test = graph.split("val"), graph.split("test")
    assert len(val) != len(test)
    right = np.eye(3, dtype=np.float32)[graph.labels]
    # Every validation vertex is scored right, and of the test vertices the first only.
    wrong = test[1:]
    right[wrong] = np.roll(right[wrong], 1, axis=1)

    def scored(model, graph, vertices, *rest, **options) -> np.ndarray:
        return right[vertices]

    monkeypatch.setattr("hyrt.inference.evaluate.infer_layerwise", scored)
    monkeypatch.setattr("hyrt.inference.evaluate.infer_sampled", scored)
    evaluator = Evaluator(build_config({"evaluate": {"mode": mode}}), graph, None)
    metrics = evaluator.evaluate(GNN(Architecture(in_features=12, hidden=8, num_classes=3)), Workers(1, "t"))
    assert metrics["val"]["accuracy"] == 1.0
    taken = np.argmax(right[test], 1)
    counts = [
        [np.count_nonzero((graph.labels[test] == i) & (taken == j)) for j in range(3)] for i in range(3)
    ]
    np.testing.assert_array_equal(evaluator.confusion, counts)
    assert metrics["test"]["accuracy"] == pytest.approx(1 / len(test))


def test_scores_of_a_device_stand_for_those_over_all_neighbors_alone() -> None:
    graph = random_graph(classes=3)
    model, team = GNN(Architecture(in_features=12, hidden=8, num_classes=3)), Workers(1, "t")
    best = np.eye(3, dtype=np.float32)[graph.labels]
    full, sampled = (
        Evaluator(build_config({"evaluate": {"mode": mode}}), graph, None) for mode in ("full", "sampled")
    )
    of_device = full.evaluate(model, team, scores_at=lambda vertices: best[vertices])
    assert {split: found["accuracy"] for split, found in of_device.items()} == {"val": 1.0, "test": 1.0}
    plain = full.evaluate(model, team)
    assert full.evaluate(model, team, scores_at=lambda vertices: None) == plain
    assert plain["val"]["accuracy"] < 1
    # Sampled scores are what was asked for.
    assert sampled.evaluate(model, team, scores_at=lambda vertices: best[vertices]) == sampled.evaluate(
        model, team
    )


def test_a_derived_model_is_evaluated_by_its_own_forward() -> None:
    class Negated(GNN):
        def forward(self, blocks, x):
            return -super().forward(blocks, x)

    graph = random_graph(classes=3)
    evaluator = Evaluator(build_config({}), graph, None)
    architecture = Architecture(in_features=12, hidden=8, num_classes=3)
    plain, negated = GNN(architecture), Negated(architecture)
    negated.load_state_dict(plain.state_dict())
    with torch.no_grad():
        negated.layers[-1].weight.neg_()
        negated.layers[-1].bias.neg_()
    found, wanted = (evaluator.evaluate(model, Workers(1, "t")) for model in (negated, plain))
    assert found["val"]["loss"] == pytest.approx(wanted["val"]["loss"])
