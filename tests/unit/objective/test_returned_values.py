"""Objectives that return wrong values: one error that names the objective, the method, and what to return."""

from __future__ import annotations

import itertools
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np
import pytest
import torch
from unit.objective.test_objective import LABELS, SCORES, Squares

from hyrt.checks import show
from hyrt.config import build_config
from hyrt.errors import ConfigError
from hyrt.graph.source import open_graph
from hyrt.objective.host_loss import check_objective, compute_host_loss
from hyrt.training.setup import build_sampler, fitted_objective

GRAPH = open_graph("synthetic:tiny")
NAN, INF = float("nan"), float("inf")

LOSSES = {
    "None": lambda loss: None,
    "a float": lambda loss: 1.0,
    "a text": lambda loss: "loss",
    "a tuple": lambda loss: (loss, {}),
    "an array": lambda loss: np.float32(loss.detach()),
    "a row": lambda loss: loss.repeat(8),
    "nothing": lambda loss: loss.reshape(1)[:0],
    "integers": lambda loss: loss.long(),
    "complex": lambda loss: loss.to(torch.complex64),
    "detached": lambda loss: loss.detach(),
    "constant": lambda loss: torch.zeros(()),
    "nan": lambda loss: loss * NAN,
    "inf": lambda loss: loss * INF,
    "a mean": lambda loss: loss / 8 + 1,
    "no gradient": lambda loss: torch.zeros((), requires_grad=True) + loss.detach(),
    "a gradient of nan": lambda loss: loss + 0 * torch.sqrt(loss - loss),
}
COUNTS = {
    "None": None,
    "a list": [1, 8],
    "a number": 8,
    "no names": {},
    "other names": {"targets": 8, "offs": 1},
    "one name": {"targets": 8},
    "numbers as names": {1: 2, 2: 8},
    "texts": {"off": "1", "targets": 8},
    "None inside": {"off": None, "targets": 8},
    "a row": {"off": torch.ones(3), "targets": 8},
    "an array": {"off": np.ones(3), "targets": 8},
    "complex": {"off": 1j, "targets": 8},
    "too many targets": {"off": 1, "targets": 9},
    "nan targets": {"off": 1, "targets": NAN},
    "None targets": {"off": 1, "targets": None},
}
METRICS = {
    "None": None,
    "a float": 0.5,
    "a tuple": (0.5,),
    "no metric": {},
    "another metric": {"accuracy": 0.5},
    "None inside": {"distance": None},
    "a text": {"distance": "0.5"},
    "a row": {"distance": np.ones(2)},
    "a list": {"distance": [0.5]},
    "complex": {"distance": 1j},
    "a number as a name": {0: 0.5},
}
TRAINING = {name: value for name, value in METRICS.items() if name not in ("no metric", "another metric")}
WEIGHTS = {
    "a list": [1.0] * 4,
    "a text": "balanced",
    "a tensor": torch.ones(4),
    "too few": np.ones(3, np.float32),
    "a matrix": np.ones((4, 1), np.float32),
    "nan": np.array([1, NAN, 1, 1], np.float32),
    "inf": np.array([1, INF, 1, 1], np.float32),
    "negative": np.array([1, -1, 1, 1], np.float32),
    "complex": np.ones(4, np.complex64),
    "texts": np.array(["1"] * 4),
}
WIDTHS = {"0": 0, "-1": -1, "4.0": 4.0, "True": True, "a text": "4", "a tuple": (4,), "nan": NAN}
NAMES = [None, 3, "loss", (1,), [None], {"loss": 1}]
FITTED = [None, 3, Squares, "squares", ()]
REASONS = [None, 3, False, ["no"]]


@pytest.fixture(autouse=True)
def _declared(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("squares", "unit.objective.test_objective:Squares", "hyrt.objectives")
    monkeypatch.setattr(
        "hyrt.runtime.entry_points.entry_points",
        lambda group: [entry] if group == "hyrt.objectives" else list(entry_points(group=group)),
    )


def refused(method: str, value: Any, call: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Squares, method, value)
    with pytest.raises(ConfigError) as caught:
        call()
    text = str(caught.value)
    assert text.startswith("objective 'squares' (unit.objective.test_objective:Squares): ")
    assert f"{method} " in text
    assert "\n" not in text
    return text


def try_it() -> None:
    check_objective(Squares(), "distance", 4)


def test_right_values_pass() -> None:
    try_it()


@pytest.mark.parametrize("case", LOSSES)
def test_losses(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Squares.loss_sum
    refused("loss_sum", lambda *given: LOSSES[case](right(*given)), try_it, monkeypatch)


@pytest.mark.parametrize("case", [*LOSSES][:11])
def test_losses_of_later_mini_batches(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Squares.loss_sum
    refused(
        "loss_sum",
        lambda *given: LOSSES[case](right(*given)),
        lambda: compute_host_loss(Squares(), SCORES.numpy().copy(), LABELS.numpy(), None),
        monkeypatch,
    )


def test_a_loss_that_needs_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Squares._squares
    text = refused(
        "loss_sum",
        lambda self, scores, labels, weights: (right(self, scores, labels) * weights).sum(),
        try_it,
        monkeypatch,
    )
    assert "loss_sum without weights failed: TypeError" in text


@pytest.mark.parametrize("case", COUNTS)
def test_counts(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("count", lambda *given: COUNTS[case], try_it, monkeypatch)


@pytest.mark.parametrize(
    ("method", "case"),
    [*itertools.product(["evaluate"], METRICS), *itertools.product(["training_metrics"], TRAINING)],
)
def test_metrics(method: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(method, lambda *given: METRICS[case], try_it, monkeypatch)


@pytest.mark.parametrize("case", WIDTHS)
def test_numbers_of_scores(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused("num_scores", lambda *given: WIDTHS[case], try_it, monkeypatch)


@pytest.mark.parametrize("attribute", ["counts", "metrics", "lowest_is_best"])
@pytest.mark.parametrize("value", NAMES, ids=show)
def test_names(attribute: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(attribute, value, try_it, monkeypatch)


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_of_classes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = GRAPH.split("train")
    config = build_config({"train": {"objective": "squares"}})
    build_sampler(config, GRAPH, targets, Squares())
    refused(
        "class_weights",
        lambda *given: WEIGHTS[case],
        lambda: build_sampler(config, GRAPH, targets, Squares()),
        monkeypatch,
    )


@pytest.mark.parametrize("value", FITTED, ids=show)
def test_what_is_fitted(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = build_config({"train": {"objective": "squares"}})
    call = lambda: fitted_objective(config, GRAPH, GRAPH.split("train"))  # noqa: E731
    assert isinstance(call(), Squares)
    refused("fit_to_targets", lambda *given: value, call, monkeypatch)


@pytest.mark.parametrize("value", REASONS, ids=show)
def test_reasons(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from hyrt.inference.evaluate import Evaluator

    config = build_config({"train": {"objective": "squares"}})
    Evaluator(config, GRAPH, None)
    refused("metric_problem", lambda *given: value, lambda: Evaluator(config, GRAPH, None), monkeypatch)
