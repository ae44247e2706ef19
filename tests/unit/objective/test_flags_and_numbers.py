"""Labels of 0 and 1, and numbers: losses, gradients, counts and metrics against their definitions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyrt.config import build_config
from hyrt.errors import ConfigError
from hyrt.objective.classification import Classification
from hyrt.objective.host_loss import check_objective, compute_host_loss
from hyrt.objective.metrics import multilabel_metrics, regression_metrics
from hyrt.objective.multilabel import MultiLabel
from hyrt.objective.objective import Objective, sum_counts
from hyrt.objective.regression import Regression

RNG = np.random.default_rng(6)
SCORES = RNG.normal(0, 2, (41, 5)).astype(np.float32)
FLAGS = RNG.integers(-1, 2, (41, 5)).astype(np.int8)
NUMBERS = np.where(RNG.random((41, 5)) < 0.2, np.nan, RNG.normal(1, 3, (41, 5))).astype(np.float32)
WEIGHTS = RNG.random(41).astype(np.float32)


def flag_losses(scores: np.ndarray, flags: np.ndarray, positive: np.ndarray | float = 1.0) -> np.ndarray:
    """[n, K] float64: -w y log p - (1 - y) log (1 - p), 0 where it is not known."""
    chance = 1 / (1 + np.exp(-scores.astype(np.float64)))
    losses = np.where(flags == 1, -positive * np.log(chance), -np.log1p(-chance))
    return np.where(flags < 0, 0.0, losses)


def flag_gradient(scores: np.ndarray, flags: np.ndarray, positive: np.ndarray | float = 1.0) -> np.ndarray:
    chance = 1 / (1 + np.exp(-scores.astype(np.float64)))
    return np.where(flags < 0, 0.0, np.where(flags == 1, positive * (chance - 1), chance))


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
@pytest.mark.parametrize("class_weights", ["none", "balanced", [1.0, 0.5, 0.0, 2.0, 3.0]], ids=str)
def test_multilabel_is_the_mean_over_known_labels(weights: np.ndarray | None, class_weights: Any) -> None:
    objective = MultiLabel(class_weights=class_weights).fit_to_targets(FLAGS, 5)
    positive = {
        "none": np.ones(5),
        "balanced": (FLAGS == 0).sum(0) / (FLAGS == 1).sum(0),
    }.get(str(class_weights), np.asarray(class_weights if isinstance(class_weights, list) else 1.0))
    per_target = (FLAGS >= 0).sum() / len(FLAGS)
    factors = (1.0 if weights is None else weights.astype(np.float64)[:, None]) / per_target
    found = compute_host_loss(objective, SCORES.copy(), FLAGS, weights)
    wanted = flag_losses(SCORES, FLAGS, positive) * factors
    assert found.loss_sum == pytest.approx(wanted.sum(), rel=1e-6)
    np.testing.assert_allclose(
        found.gradient, flag_gradient(SCORES, FLAGS, positive) * factors, rtol=2e-6, atol=1e-7
    )
    if weights is None and class_weights == "none":
        known = FLAGS >= 0
        torchs = torch.nn.BCEWithLogitsLoss()(
            torch.from_numpy(SCORES[known]), torch.from_numpy(FLAGS[known].astype(np.float32))
        )
        assert found.loss_sum / len(FLAGS) == pytest.approx(float(torchs), rel=1e-6)


@pytest.mark.parametrize("loss", ["mse", "mae"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_regression_is_the_mean_over_known_numbers(loss: str, weights: np.ndarray | None) -> None:
    objective = Regression(loss=loss).fit_to_targets(NUMBERS, 5)  # type: ignore[arg-type]
    known = ~np.isnan(NUMBERS)
    factors = (1.0 if weights is None else weights.astype(np.float64)[:, None]) * len(NUMBERS) / known.sum()
    off = np.where(known, SCORES.astype(np.float64) - np.nan_to_num(NUMBERS.astype(np.float64)), 0)
    found = compute_host_loss(objective, SCORES.copy(), NUMBERS, weights)
    losses, slopes = (off**2, 2 * off) if loss == "mse" else (np.abs(off), np.sign(off))
    assert found.loss_sum == pytest.approx((losses * factors).sum(), rel=1e-6)
    np.testing.assert_allclose(found.gradient, slopes * factors, rtol=2e-6, atol=1e-7)
    assert found.counts == {
        "squared": pytest.approx((off**2).sum(), rel=1e-6),
        "absolute": pytest.approx(np.abs(off).sum(), rel=1e-6),
        "known": known.sum(),
        "targets": 41,
    }


@pytest.mark.parametrize(
    ("objective", "labels"), [(MultiLabel(), FLAGS), (Regression(), NUMBERS)], ids=["flags", "numbers"]
)
def test_counts_of_parts_add_up_to_the_metrics_of_all(objective: Objective, labels: np.ndarray) -> None:
    fitted = objective.fit_to_targets(labels, 5)
    parts = [slice(0, 3), slice(3, 29), slice(29, 41)]
    counts = sum_counts(
        compute_host_loss(fitted, SCORES[part].copy(), labels[part], None).counts for part in parts
    )
    found, whole = fitted.training_metrics(counts), fitted.evaluate(SCORES, labels)
    assert counts["targets"] == 41
    assert found
    for name, value in found.items():
        assert value == pytest.approx(whole[name], rel=1e-6)
    assert not np.isinf(list(fitted.training_metrics(sum_counts([{}])).values())).any()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_flag_metrics_are_scikit_learns(data: st.DataObject) -> None:
    rows, columns = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 3))
    cells = rows * columns
    # Few distinct scores, so that there are ties.
    scores = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=cells, max_size=cells)), np.float32)
    labels = np.array(data.draw(st.lists(st.integers(-1, 1), min_size=cells, max_size=cells)), np.int8)
    scores, labels = scores.reshape(rows, columns), labels.reshape(rows, columns)
    found, known = multilabel_metrics(scores, labels), labels >= 0
    each = [(scores[known[:, c], c], labels[known[:, c], c]) for c in range(columns)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        micro = np.nan
        if known.any():
            micro = sklearn.metrics.f1_score(labels[known], scores[known] > 0, zero_division=np.nan)
        f1 = [sklearn.metrics.f1_score(y, z > 0, zero_division=np.nan) if len(y) else np.nan for z, y in each]
        macro = np.mean([one for one in f1 if not np.isnan(one)] or [np.nan])
        some = [sklearn.metrics.average_precision_score(y, z) for z, y in each if (y == 1).any()]
        both = [sklearn.metrics.roc_auc_score(y, z) for z, y in each if (y == 1).any() and (y == 0).any()]
        loss = flag_losses(scores, labels).sum() / known.sum() if known.any() else np.nan
    wanted = {
        "micro_f1": micro,
        "macro_f1": macro,
        "mean_average_precision": np.mean(some) if some else np.nan,
        "roc_auc": np.mean(both) if both else np.nan,
        "loss": loss,
    }
    assert found == pytest.approx(wanted, rel=1e-9, nan_ok=True)


def test_number_metrics_are_scikit_learns() -> None:
    whole = np.nan_to_num(NUMBERS, nan=0.5)
    found = regression_metrics(SCORES, whole)
    assert found["mse"] == pytest.approx(sklearn.metrics.mean_squared_error(whole, SCORES.astype(float)))
    assert found["mae"] == pytest.approx(sklearn.metrics.mean_absolute_error(whole, SCORES.astype(float)))
    assert found["r2"] == pytest.approx(sklearn.metrics.r2_score(whole, SCORES.astype(float)))
    known = ~np.isnan(NUMBERS)
    each = [sklearn.metrics.r2_score(NUMBERS[known[:, c], c], SCORES[known[:, c], c]) for c in range(5)]
    assert regression_metrics(SCORES, NUMBERS)["r2"] == pytest.approx(np.mean(each), rel=1e-5)
    flat = np.full((4, 1), 2.0, np.float32)
    assert regression_metrics(flat, flat)["r2"] == sklearn.metrics.r2_score(flat, flat) == 1
    assert regression_metrics(flat + 1, flat)["r2"] == sklearn.metrics.r2_score(flat, flat + 1) == 0
    assert np.isnan(regression_metrics(flat[:0], flat[:0])["mse"])


@pytest.mark.parametrize("label", [-1, 0, 1])
def test_a_flag_scored_nan_counts_only_where_it_is_not_known(label: int) -> None:
    scores, labels = np.array([[1, -2], [-1, 3], [2, 1]], np.float32), np.array([[1, 0], [0, 1], [1, 0]])
    labels[1, 1] = label
    without = multilabel_metrics(scores, labels)
    scores[1, 1] = np.nan
    found = multilabel_metrics(scores, labels)
    if label < 0:
        assert found == pytest.approx(without, nan_ok=True)
    else:
        assert np.isnan([found[name] for name in ("micro_f1", "macro_f1", "loss")]).all()
        # Of labels that no target has, these have no figure to begin with.
        assert np.isnan([found["roc_auc"], found["mean_average_precision"]]).all() == (label == 1)


@pytest.mark.parametrize("large", [np.inf, -np.inf])
def test_infinite_scores_of_flags_cost_what_they_are_worth(large: float) -> None:
    scores, labels = np.array([[large], [1.0], [-1.0]], np.float32), np.array([[1], [1], [0]])
    found = multilabel_metrics(scores, labels)
    assert found["loss"] == pytest.approx(2 * np.log1p(np.exp(-1)) / 3 if large > 0 else np.inf)
    finite = np.nan_to_num(scores, posinf=1e9, neginf=-1e9)
    assert found["roc_auc"] == sklearn.metrics.roc_auc_score(labels[:, 0], finite[:, 0])
    assert found["micro_f1"] == sklearn.metrics.f1_score(labels, scores > 0)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_numbers_predicted_as_no_numbers_are_no_match(wrong: float) -> None:
    """Equal labels have no spread: an error that is not a number is neither 0 nor right."""
    labels = np.full((4, 1), 0.1, np.float32)
    for at in (labels, np.arange(4, dtype=np.float32)[:, None]):
        scores = at.copy()
        scores[2] = wrong
        found = regression_metrics(scores, at)
        assert not np.isfinite([found["mse"], found["mae"]]).any()
        assert np.isnan(found["r2"]) if np.isnan(wrong) else found["r2"] <= 0
    assert regression_metrics(np.full((7, 1), 0.1, np.float32), np.full((7, 1), 0.3, np.float32))["r2"] == 0


def test_given_class_weights_make_a_weighted_mean() -> None:
    scores, labels = torch.from_numpy(SCORES), torch.from_numpy(RNG.integers(0, 5, 41))
    weights = [1.0, 0.0, 2.5, 3.0, 0.5]
    objective = Classification(class_weights=weights)
    of_classes = objective.class_weights(labels.numpy(), 5)
    assert of_classes is not None
    of_targets = torch.from_numpy(of_classes)[labels]
    found = float(objective.loss_sum(scores, labels, of_targets)) / 41
    assert found == pytest.approx(
        float(torch.nn.CrossEntropyLoss(torch.tensor(weights))(scores, labels)), rel=1e-6
    )


def test_what_fits_the_labels_is_chosen_and_what_does_not_is_refused_in_words() -> None:
    classes, numbers = np.zeros(4, np.int16), np.zeros(4, np.float32)
    plain = build_config({}).train
    assert isinstance(plain.build_objective(classes), Classification)
    assert isinstance(plain.build_objective(FLAGS), MultiLabel)
    assert isinstance(plain.build_objective(numbers), Regression)
    absolute = build_config({"train": {"objective_options": {"loss": "mae"}}}).train
    assert isinstance(absolute.build_objective(numbers), Regression)
    given = build_config({"train": {"objective": "regression"}}).train
    with pytest.raises(
        ConfigError,
        match=r"train\.objective=regression needs labels that are float32 \[V\] or \[V, K\], numbers "
        r"per vertex, but they are int16 \[4\], read as integers \[V\], one class per vertex: remove "
        r"train\.objective to use classification",
    ):
        given.build_objective(classes)
    with pytest.raises(ConfigError, match="is not supported by objective regression"):
        build_config({"train": {"class_weights": [1, 2]}}).train.build_objective(numbers)
    listed = build_config({"train": {"class_weights": [1, 2]}}).train
    with pytest.raises(ConfigError, match="has 2 numbers for 5 labels: set one per label"):
        listed.build_objective(FLAGS).fit_to_targets(FLAGS, 5)
    with pytest.raises(ConfigError, match="has 2 numbers for 3 classes"):
        listed.build_objective(classes).class_weights(classes, 3)
    for wrong in ([], [0, 0], [-1, 2], [float("nan")]):
        with pytest.raises(ValueError, match="use non-negative numbers that are not all 0"):
            Classification(class_weights=wrong)
    with pytest.raises(ConfigError, match="loss must be one of mse, mae, got 'huber'"):
        build_config({"train": {"objective_options": {"loss": "huber"}}}).train.build_objective(numbers)
    with pytest.raises(ConfigError, match=r"did you mean 'micro_f1'\?"):
        build_config({"train": {"metric": "mikro_f1"}})


@pytest.mark.parametrize("objective", [MultiLabel(), Regression()], ids=["flags", "numbers"])
@pytest.mark.parametrize("outputs", [1, 7])
def test_both_keep_their_word(objective: Objective, outputs: int) -> None:
    check_objective(objective, objective.metrics[0], outputs)
    with pytest.raises(ValueError, match="the model returns 3 scores per target, but each target has 2"):
        objective.loss_sum(torch.zeros(4, 3), torch.zeros(4, 2), None)
