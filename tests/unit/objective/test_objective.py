"""Objectives: classification against its definition, others through registry, settings and devices."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np
import pytest
import torch

from hyrt.config import build_config
from hyrt.device import DeviceOptions
from hyrt.device.calls import load_replica
from hyrt.device.discovery import find_device
from hyrt.errors import ConfigError, PluginConflictError, UnsupportedModelError
from hyrt.graph.source import open_graph
from hyrt.inference.evaluate import Evaluator
from hyrt.objective import Objective
from hyrt.objective.classification import Classification
from hyrt.objective.host_loss import check_objective, compute_host_loss
from hyrt.objective.objective import build_objective, find_objective, sum_counts
from hyrt.testing import cases
from hyrt.testing.trial import run_step, trainable_parameters
from hyrt.training.build_run import build_run

GENERATOR = torch.Generator().manual_seed(4)
SCORES = torch.randn(30, 4, generator=GENERATOR)
LABELS = torch.randint(0, 4, (30,), generator=GENERATOR)
WEIGHTS = torch.rand(30, generator=GENERATOR)


class Squares(Objective):
    """Squared distance of the scores from the one-hot label, so many times."""

    name = "squares"
    counts = ("off", "targets")
    metrics = ("distance",)
    lowest_is_best = ("distance",)

    def __init__(self, *, times: float = 1.0) -> None:
        self.times = times

    def _squares(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return ((scores - torch.nn.functional.one_hot(labels, scores.shape[1])) ** 2).sum(1) * self.times

    def loss_sum(
        self, scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        squares = self._squares(scores, labels)
        return squares.sum() if weights is None else (squares * weights).sum()

    def count(self, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, int | torch.Tensor]:
        return {"off": self._squares(scores, labels).sum(), "targets": len(labels)}

    def training_metrics(self, counts: Mapping[str, float]) -> dict[str, float]:
        return {"distance": counts["off"] / counts["targets"]}

    def evaluate(self, scores: Any, labels: Any) -> dict[str, float]:
        return {"distance": float(self._squares(torch.from_numpy(scores), torch.from_numpy(labels)).mean())}


class MeanOfThem(Squares):
    name = "mean"

    def loss_sum(self, scores: Any, labels: Any, weights: Any) -> Any:
        return super().loss_sum(scores, labels, weights) / len(labels)


class EachOfThem(Squares):
    name = "each"

    def loss_sum(self, scores: Any, labels: Any, weights: Any) -> Any:
        return self._squares(scores, labels)


class NoNumber(Squares):
    name = "no-number"

    def loss_sum(self, scores: Any, labels: Any, weights: Any) -> Any:
        return scores.sum() * float("nan")


class RaisingLoss(Squares):
    name = "raising"

    def loss_sum(self, scores: Any, labels: Any, weights: Any) -> Any:
        raise KeyError("boom")


class WrongCounts(Squares):
    name = "wrong-counts"

    def count(self, scores: Any, labels: Any) -> Any:
        return {"hello": 3}


class NoTargets(Squares):
    name = "no-targets"

    def count(self, scores: Any, labels: Any) -> Any:
        return {"off": 1, "targets": 1}


class OtherMetric(Squares):
    name = "other-metric"

    def evaluate(self, scores: Any, labels: Any) -> Any:
        return {"other": 1.0}


class Unfinished(Objective):
    name = "unfinished"
    metrics = ("distance",)


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "unit.objective.test_objective"
    entries = [
        EntryPoint("classification", "hyrt.objective.classification:Classification", "hyrt.objectives"),
        EntryPoint("squares", f"{here}:Squares", "hyrt.objectives"),
        EntryPoint("round", f"{here}:Squares", "hyrt.objectives"),
        *(
            EntryPoint(each.name, f"{here}:{each.__name__}", "hyrt.objectives")
            for each in (
                MeanOfThem,
                EachOfThem,
                NoNumber,
                RaisingLoss,
                WrongCounts,
                NoTargets,
                OtherMetric,
                Unfinished,
            )
        ),
        EntryPoint("broken", "no_such_module:Broken", "hyrt.objectives"),
        EntryPoint("twice", f"{here}:One", "hyrt.objectives"),
        EntryPoint("twice", f"{here}:Two", "hyrt.objectives"),
    ]
    monkeypatch.setattr(
        "hyrt.runtime.entry_points.entry_points",
        lambda group: entries if group == "hyrt.objectives" else entry_points(group=group),
    )


@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_classification_sums_cross_entropy_and_counts_hits(weights: torch.Tensor | None) -> None:
    chances = torch.softmax(SCORES.double(), 1)[torch.arange(30), LABELS]
    losses = -chances.log() * (1 if weights is None else weights.double())
    found = Classification().loss_sum(SCORES, LABELS, weights)
    assert float(found) == pytest.approx(float(losses.sum()), rel=1e-6)
    counts = Classification().count(SCORES, LABELS)
    hits = sum(int(row.argmax()) == int(label) for row, label in zip(SCORES, LABELS, strict=True))
    assert {name: int(value) for name, value in counts.items()} == {"correct": hits, "targets": 30}


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("smoothing", [0.1, 0.75])
def test_smoothed_labels_are_those_of_their_definition_and_of_torch(
    weights: torch.Tensor | None, smoothing: float
) -> None:
    objective = Classification(label_smoothing=smoothing)
    labels = (1 - smoothing) * torch.nn.functional.one_hot(LABELS, 4).double() + smoothing / 4
    losses = -(labels * torch.log_softmax(SCORES.double(), 1)).sum(1)
    found = objective.loss_sum(SCORES, LABELS, weights)
    wanted = (losses * (1 if weights is None else weights.double())).sum()
    assert float(found) == pytest.approx(float(wanted), rel=1e-6)
    if weights is None:
        of_torch = torch.nn.CrossEntropyLoss(reduction="sum", label_smoothing=smoothing)
        assert float(found) == float(of_torch(SCORES, LABELS))
    assert not objective.is_plain_classification
    assert Classification().is_plain_classification


def test_an_evaluation_keeps_to_the_plain_labels() -> None:
    found = Classification(label_smoothing=0.3).evaluate(SCORES.numpy(), LABELS.numpy())
    assert found == Classification().evaluate(SCORES.numpy(), LABELS.numpy())


def test_training_metrics_come_from_added_counts() -> None:
    counts = sum_counts([{"correct": 3, "targets": 10}, {}, {"correct": 5, "targets": 6}])
    assert counts == {"correct": 8, "targets": 16}
    assert Classification().training_metrics(counts) == {"accuracy": 0.5}
    assert Classification().training_metrics(sum_counts([{}])) == {"accuracy": 0.0}


def test_the_hosts_gradient_is_that_of_the_sum() -> None:
    found = compute_host_loss(Squares(), SCORES.numpy(), LABELS.numpy(), WEIGHTS.numpy())
    one_hot = np.eye(4)[LABELS.numpy()]
    off = SCORES.numpy().astype(np.float64) - one_hot
    np.testing.assert_allclose(found.gradient, 2 * off * WEIGHTS.numpy()[:, None], rtol=1e-5, atol=1e-6)
    assert found.loss_sum == pytest.approx(float(((off**2).sum(1) * WEIGHTS.numpy()).sum()), rel=1e-5)
    assert found.counts == {"off": pytest.approx(float((off**2).sum()), rel=1e-5), "targets": 30}


def test_classification_is_declared_like_any_other() -> None:
    assert find_objective("classification") is Classification


@pytest.mark.usefixtures("declared")
def test_what_cannot_be_used_is_an_error_that_says_why() -> None:
    with pytest.raises(ConfigError, match=r"unknown objective 'square' \(did you mean 'squares'\?\)"):
        build_config({"train": {"objective": "square"}})
    with pytest.raises(ConfigError, match=r"objective 'broken' is broken, because no_such_module:Broken"):
        build_config({"train": {"objective": "broken"}})
    with pytest.raises(PluginConflictError, match="'twice' is declared by"):
        build_config({"train": {"objective": "twice"}})
    with pytest.raises(
        ConfigError, match=r"'round': \S+:\w+ must derive from Objective and set name = 'round'$"
    ):
        build_config({"train": {"objective": "round"}})
    with pytest.raises(
        ConfigError, match=r"train.objective='squares' rejects the options \{'speed': 3\}: .*'speed'"
    ):
        build_objective("squares", {"speed": 3})
    balanced = build_config({"train": {"objective": "squares", "class_weights": "balanced"}})
    with pytest.raises(
        ConfigError, match=r"train.class_weights=balanced is not supported by objective squares"
    ):
        balanced.train.build_objective()
    smoothed = build_config({"train": {"objective": "squares", "label_smoothing": 0.1}})
    with pytest.raises(
        ConfigError, match=r"^train.label_smoothing=0.1 is not supported by objective squares"
    ):
        smoothed.train.build_objective()
    with pytest.raises(ConfigError, match="label_smoothing"):
        build_config({"train": {"label_smoothing": 1.0}})


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "mean",
            r"loss_sum is not a sum over targets, because it is \S+ for 8 targets, but \S+ for their two ",
        ),
        ("each", r"loss_sum returns Tensor float32\[8\], not a scalar tensor: return "),
        ("no-number", "loss_sum is nan for scores between -1 and 1: return "),
        ("raising", "loss_sum failed: KeyError: 'boom'"),
        ("wrong-counts", "count returns hello, but the attribute counts declares off, targets"),
        ("no-targets", "count returns targets=1 for 8 targets: return len.labels. as targets"),
        ("other-metric", "evaluate returns other, but not distance, which selects the best epoch"),
        ("unfinished", "its class Unfinished does not define count, evaluate, loss_sum, training_metrics"),
    ],
)
def test_one_that_breaks_its_word_is_named_before_the_training(name: str, says: str) -> None:
    with pytest.raises(ConfigError, match=rf"^objective '{name}' \(.*test_objective:\w+\): {says}"):
        build_run(build_config({"train": {"objective": name}}), open_graph("synthetic:tiny"))


@pytest.mark.usefixtures("declared")
def test_one_that_fails_on_some_mini_batch_only_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Squares, scores: Any, labels: Any, weights: Any) -> Any:
        raise KeyError("boom")

    monkeypatch.setattr(Squares, "loss_sum", refuse)
    says = r"^objective 'squares' \(.*test_objective:Squares\): loss_sum failed: KeyError: 'boom'$"
    with pytest.raises(ConfigError, match=says):
        compute_host_loss(Squares(), SCORES.numpy(), LABELS.numpy(), None)
    case = cases.model_cases()[0]
    graph = cases.make_graph(case.settings["in_features"], case.settings["num_classes"])
    backend, info = find_device("cpu")
    with closing(backend.open(info, DeviceOptions(threads=1))) as device:
        model = case.build()
        load_replica(device, model, trainable_parameters(model), Squares())
        batch = cases.sampled_batch(graph, 2, cases.sample_targets(), cases.ROWS)
        with pytest.raises(ConfigError, match=says):
            run_step(device, batch)


@pytest.mark.parametrize("classes", [1, 2, 3, 40])
def test_the_built_in_one_keeps_its_word(classes: int) -> None:
    for metric in Classification.metrics:
        if metric != "roc_auc" or classes == 2:
            check_objective(Classification(), metric, classes)


def test_trying_an_objective_takes_little_with_many_classes() -> None:
    seen: list[int] = []

    class Seen(Classification):
        def loss_sum(
            self, scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
        ) -> torch.Tensor:
            seen.append(len(scores))
            return super().loss_sum(scores, labels, weights)

    check_objective(Seen(), "macro_f1", 3000)
    assert max(seen) <= 2048


@pytest.mark.usefixtures("declared")
def test_the_metric_is_one_of_the_objectives() -> None:
    with pytest.raises(
        ConfigError, match=r"of classification: choose auto, accuracy, .* or loss \(did you mean 'macro_f1'\?"
    ):
        build_config({"train": {"objective": "classification", "metric": "macrof1"}})
    with pytest.raises(ConfigError, match=r"is not a metric of squares: choose auto or distance$"):
        build_config({"train": {"objective": "squares", "metric": "accuracy"}})
    config = build_config({"train": {"objective": "squares", "objective_options": {"times": 2}}})
    evaluator = Evaluator(config, open_graph("synthetic:tiny"), None)
    assert evaluator.metric == "distance"
    # The lowest distance is the best one.
    near, far = ({"val": {"distance": value}} for value in (0.5, 2.0))
    assert evaluator.ranking_value(near, 1) > evaluator.ranking_value(far, 2)
    assert evaluator.ranking_value({}, 2) > evaluator.ranking_value({}, 1)


@pytest.mark.parametrize("name", ["cpu", "opencl"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("objective", [Squares(times=0.5), Classification(label_smoothing=0.2)])
def test_devices_train_for_what_no_kernel_computes(name: str, weighted: bool, objective: Objective) -> None:
    if name == "opencl":
        pytest.importorskip("pyopencl")
    backend, info = find_device(name)
    (case, *_) = cases.model_cases()
    model = case.build()
    graph = cases.make_graph(case.settings["in_features"], case.settings["num_classes"])
    batch = cases.sampled_batch(graph, 2, cases.sample_targets(), cases.ROWS, class_weights=weighted)
    device = backend.open(info, DeviceOptions(threads=1))
    try:
        load_replica(device, model, trainable_parameters(model), objective)
        found = run_step(device, batch)
        load_replica(device, model, trainable_parameters(model), Classification())
        assert set(run_step(device, batch).counts) == {"correct", "targets"}
    finally:
        device.close()
    twin = case.build().double()
    wide = torch.from_numpy(cases.dense_rows(graph, batch.blocks[0].sources))  # type: ignore[arg-type]
    scores = twin(batch.blocks, wide)
    weights = None if batch.target_weights is None else torch.from_numpy(batch.target_weights).double()
    wanted = objective.loss_sum(scores, torch.from_numpy(batch.labels), weights)
    wanted.backward()
    assert found.loss_sum == pytest.approx(wanted.item(), rel=1e-5)
    assert found.counts["targets"] == len(batch.targets)
    for mine, parameter in zip(found.gradients, twin.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(mine.double(), parameter.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["null", "fpga-csim"])
def test_a_device_that_computes_classification_only_refuses_another(name: str) -> None:
    backend, info = find_device(name)
    model = cases.model_cases()[0].build()
    device = backend.open(info, DeviceOptions())
    try:
        with pytest.raises(
            UnsupportedModelError,
            match=f"{name}:0 does not support objective 'squares', only plain classification",
        ):
            load_replica(device, model, trainable_parameters(model), Squares())
        with pytest.raises(
            UnsupportedModelError, match=f"{name}:0 does not support objective 'classification' with label"
        ):
            load_replica(device, model, trainable_parameters(model), Classification(label_smoothing=0.1))
        load_replica(device, model, trainable_parameters(model), Classification())
    finally:
        device.close()


def test_a_class_derived_from_classification_is_no_plain_one() -> None:
    """Kernel devices would train it for cross entropy, whatever its own loss is."""

    class Halved(Classification):
        pass

    assert not Halved().is_plain_classification
