from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from graphs import random_graph

from hyrt.config import build_config
from hyrt.errors import ConfigError, DataError, RunWarning
from hyrt.inference.evaluate import Evaluator
from hyrt.inference.output_links import write_link_scores
from hyrt.inference.output_rows import write_rows
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.runtime.workers import Workers
from hyrt.training.open_graph import link_graph


def two_class_graph():
    return random_graph(classes=2)


def test_roc_auc_needs_both_classes_among_the_validation_vertices() -> None:
    graph = two_class_graph()
    config = build_config({"train": {"metric": "roc_auc"}})
    assert Evaluator(config, graph, None).metric == "roc_auc"
    graph.labels[graph.split("val")] = 1
    with pytest.raises(ConfigError, match=r"random, split 0: .* both classes .* all have class 1"):
        Evaluator(config, graph, None)
    # Another metric is not in the way.
    Evaluator(build_config({}), graph, None)


def test_a_split_without_validation_vertices_is_warned_of() -> None:
    graph = two_class_graph()
    assert Evaluator(build_config({}), graph, None).warning is None
    graph.masks["val"][:] = False
    evaluator = Evaluator(build_config({"train": {"patience": 3, "metric": "roc_auc"}}), graph, None)
    assert evaluator.warning is not None
    assert "has no validation vertices in split 0" in evaluator.warning
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


@pytest.mark.parametrize("links", [False, True])
def test_scores_that_are_not_finite_are_named_and_never_the_best(links: bool) -> None:
    graph = random_graph(classes=3)
    graph = replace(graph, vertices=replace(graph.vertices, vertex_ids=np.arange(300)[::-1].copy()))
    config = build_config({"train": {"objective": "links" if links else "auto"}})
    graph = link_graph(config, graph) if links else graph
    evaluator = Evaluator(config, graph, None)
    model, team = GNN(Architecture(in_features=12, hidden=8, num_classes=3)), Workers(1, "t")
    wrong = []

    def scores_at(vertices: np.ndarray) -> np.ndarray:
        scores = np.eye(3, dtype=np.float32)[vertices % 3]
        scores[[5, 9], 1] = wrong
        wrong_vertices[:] = vertices[[5, 9]]
        return scores

    wrong_vertices = [0, 0]
    wrong = [0.5, 0.25]
    fine = evaluator.evaluate(model, team, scores_at=scores_at)
    assert evaluator.not_finite is None
    wrong = [np.nan, np.inf]
    found = evaluator.evaluate(model, team, scores_at=scores_at)
    assert evaluator.not_finite is not None
    kind = "embeddings" if links else "scores"
    assert evaluator.not_finite.startswith(f"the {kind} of 2 of ")
    assert f"starting at vertex {299 - wrong_vertices[0]}," in evaluator.not_finite
    assert np.isnan(found["val"][evaluator.metric])
    assert evaluator.ranking_value(found, 3) == -np.inf < evaluator.ranking_value(fine, 1)
    evaluator.evaluate(model, team, scores_at=lambda vertices: np.ones((len(vertices), 3), np.float32))
    assert evaluator.not_finite is None


def test_there_is_no_class_of_scores_that_are_no_numbers(tmp_path: Path) -> None:
    graph = random_graph(classes=3)
    graph.features.matrix[7] = np.nan  # type: ignore[index]
    model, team = GNN(Architecture(in_features=12, hidden=8, num_classes=3)), Workers(1, "t")
    told = r"the scores of \d+ vertices are nan, starting at vertex 7, so these vertices have no class"
    with pytest.raises(DataError, match=told):
        write_rows(tmp_path / "c.npy", model, graph, np.array([7]), "classes", team, memory_bytes=1 << 24)
    assert not list(tmp_path.iterdir())
    with pytest.warns(RunWarning, match="^the scores of 1 of 1 vertices .* at vertex 7: check the feat"):
        write_rows(tmp_path / "s.npy", model, graph, np.array([7]), "scores", team, memory_bytes=1 << 24)
    assert np.isnan(np.load(tmp_path / "s.npy")).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("ids", [False, True])
def test_written_rows_and_links_that_are_not_finite_are_counted(
    value: float, ids: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces are small, so that numbers are added up and names are those of later pieces."""
    monkeypatch.setattr("hyrt.inference.output_rows._NPY_ROWS_PER_WRITE", 3)
    monkeypatch.setattr("hyrt.inference.output_links._NPY_PAIRS_PER_WRITE", 3)
    graph = random_graph(classes=3)
    numbers = np.arange(graph.num_vertices)[::-1].copy()
    if ids:
        graph = replace(graph, vertices=replace(graph.vertices, vertex_ids=numbers))
    rows = np.zeros((graph.num_vertices, 3), np.float32)
    wrong = [4, 5, 8]
    rows[wrong, 1] = value
    for module in ("output_rows", "output_links"):
        monkeypatch.setattr(f"hyrt.inference.{module}.infer_layerwise", lambda m, g, v, w, **named: rows[v])
    model, team = GNN(Architecture(in_features=12, hidden=8, num_classes=3)), Workers(1, "t")
    first = numbers[4] if ids else 4
    with pytest.warns(
        RunWarning, match=rf"^the scores of 3 of 10 vertices .* starting at vertex {first}: "
    ) as told:
        write_rows(tmp_path / "s.npy", model, graph, np.arange(10), "scores", team, memory_bytes=1 << 24)
    assert len(told) == 1
    pairs = np.stack([np.arange(10), np.full(10, 20)], axis=1)
    first, other = (numbers[4], numbers[20]) if ids else (4, 20)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    told_links = (
        rf"^the scores of 3 of 10 links .* starting at link \({first}, {other}\): .* lower train\.lr, because"
    )
    with pytest.warns(RunWarning, match=told_links) as told:
        write_link_scores(
            tmp_path / "l.npy", model, graph, pairs, lambda a, b: (a + b).sum(1), team, memory_bytes=1 << 24
        )
    assert len(told) == 1
