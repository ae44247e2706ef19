"""Metrics against scikit-learn and float64 torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score
from sklearn.utils.class_weight import compute_class_weight

from hyrt.objective.metrics import (
    accuracy,
    balanced_class_weights,
    classification_metrics,
    confusion_matrix,
    cross_entropy,
    macro_f1,
    roc_auc,
)


@st.composite
def scored(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Scores with many ties, and labels that need not hold every class."""
    rows, classes = draw(st.integers(1, 40)), draw(st.integers(2, 6))
    values = st.integers(-4, 4).map(float)
    scores = draw(hnp.arrays(np.float32, (rows, classes), elements=values))
    dtype = draw(st.sampled_from([np.int16, np.int64]))
    return scores, draw(hnp.arrays(dtype, rows, elements=st.integers(0, classes - 1)))


@settings(max_examples=80, deadline=None)  # Of which sklearn takes nearly all the time.
@given(scored())
def test_against_sklearn_and_torch(case: tuple[np.ndarray, np.ndarray]) -> None:
    scores, labels = case
    num_classes = scores.shape[1]
    predicted = scores.argmax(1)
    assert accuracy(scores, labels) == pytest.approx(accuracy_score(labels, predicted), abs=1e-15)
    assert macro_f1(scores, labels) == pytest.approx(f1_score(labels, predicted, average="macro"), abs=1e-12)
    reference = torch.nn.functional.cross_entropy(
        torch.from_numpy(scores).double(), torch.from_numpy(labels).long()
    )
    assert cross_entropy(scores, labels) == pytest.approx(reference.item(), rel=1e-12, abs=1e-12)
    metrics = classification_metrics(scores, labels)
    assert metrics["accuracy"] == accuracy(scores, labels)
    assert ("roc_auc" in metrics) == (num_classes == 2 and len(set(labels.tolist())) == 2)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), rows=st.integers(2, 60))
def test_roc_auc_with_ties(data: st.DataObject, rows: int) -> None:
    labels = data.draw(hnp.arrays(np.int16, rows, elements=st.integers(0, 1)))
    assume(0 < labels.sum() < rows)
    scores = data.draw(
        hnp.arrays(
            np.float64, rows, elements=st.sampled_from([-1e300, -1.0, -0.0, 0.0, 1e-9, 0.5, 1.0, 7e200])
        )
    )
    assert roc_auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_roc_auc_of_many_rows() -> None:
    rng = np.random.default_rng(3)
    labels = (rng.random(200_000) < 0.2).astype(np.int16)
    scores = np.round(rng.normal(size=200_000) + labels, 2).astype(np.float32)
    assert roc_auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_roc_auc_uses_the_margin() -> None:
    # In float32 both probabilities of class 1 round to 1: only the margin tells them apart.
    scores = np.array([[0, 40], [0, 50]], np.float32)
    assert classification_metrics(scores, np.array([0, 1]))["roc_auc"] == 1.0


def test_roc_auc_needs_both_classes() -> None:
    with pytest.raises(ValueError, match=r"needs both labels, 0 and 1, got \[1\]"):
        roc_auc(np.array([0.1, 0.2]), np.array([1, 1]))
    with pytest.raises(ValueError, match=r"got \[0, 1, 2\]"):
        roc_auc(np.array([0.1, 0.2, 0.3]), np.array([0, 1, 2]))
    assert math.isnan(roc_auc(np.array([0.1, math.nan]), np.array([0, 1])))


def test_classes_that_never_occur_are_left_out_of_macro_f1() -> None:
    scores = np.eye(10, dtype=np.float32)[[0, 1, 1, 4]]
    labels = np.array([0, 1, 0, 1])
    assert macro_f1(scores, labels) == pytest.approx(f1_score(labels, scores.argmax(1), average="macro"))


@pytest.mark.parametrize("large", [np.inf, -np.inf, np.nan])
def test_metrics_of_a_model_that_has_diverged_are_nan_and_warn_of_nothing(large: float) -> None:
    scores = np.zeros((4, 2), dtype=np.float32)
    scores[1] = large
    metrics = classification_metrics(scores, np.array([0, 1, 0, 1]))
    assert np.isnan(metrics["loss"])
    assert np.isnan(metrics["roc_auc"])
    # Infinite scores are compared as numbers are; what is not a number is not a prediction of class 0.
    assert np.isnan(metrics["accuracy"]) == np.isnan(metrics["macro_f1"]) == np.isnan(large)
    counts = confusion_matrix(scores, np.array([0, 1, 0, 1]))
    assert counts.tolist() == ([[2, 0], [1, 0]] if np.isnan(large) else [[2, 0], [2, 0]])


@settings(max_examples=60, deadline=None)
@given(scored(), st.data())
def test_one_score_that_is_not_a_number_is_in_every_metric(
    case: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    scores, labels = case
    row, column = (data.draw(st.integers(0, size - 1)) for size in scores.shape)
    scores[row, column] = np.nan
    assert all(math.isnan(value) for value in classification_metrics(scores, labels).values())
    assert confusion_matrix(scores, labels).sum() == len(labels) - 1


def test_cross_entropy_of_large_scores_and_several_chunks() -> None:
    rng = np.random.default_rng(0)
    scores = (rng.normal(size=(40_000, 3)) * 1000).astype(np.float16)
    labels = rng.integers(0, 3, 40_000).astype(np.int16)
    reference = torch.nn.functional.cross_entropy(
        torch.from_numpy(scores).double(), torch.from_numpy(labels).long()
    )
    assert cross_entropy(scores, labels) == pytest.approx(reference.item(), rel=1e-12)


def test_no_rows() -> None:
    scores, labels = np.zeros((0, 3), np.float32), np.zeros(0, np.int64)
    assert all(math.isnan(value) for value in classification_metrics(scores, labels).values())
    assert balanced_class_weights(labels, 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        (np.zeros(3), np.zeros(3, int)),
        (np.zeros((3, 2)), np.zeros(4, int)),
        (np.zeros((2, 2)), np.array([0, 2])),
        (np.zeros((2, 2)), np.array([0, -1])),
    ],
)
def test_wrong_input(scores: np.ndarray, labels: np.ndarray) -> None:
    with pytest.raises(ValueError, match="labels"):
        classification_metrics(scores, labels)


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(np.int16, st.integers(1, 50), elements=st.integers(0, 6)))
def test_class_weights(labels: np.ndarray) -> None:
    weights = balanced_class_weights(labels, 9)
    present = np.unique(labels)
    reference = np.zeros(9)
    reference[present] = compute_class_weight("balanced", classes=present, y=labels)
    np.testing.assert_allclose(weights, reference, rtol=1e-6)
    assert weights[labels].mean() == pytest.approx(1, rel=1e-5)
