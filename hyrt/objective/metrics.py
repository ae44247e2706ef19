"""Metrics of classification, and class weights.

Scores are [n, C] floats before the softmax; labels are [n] integers in 0..C-1. Metrics without rows, or with
a NaN score, are NaN: NaN is not a prediction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.errors import ArgumentError, ConfigError
from hyrt.objective.check_scores import check_scores

Array = NDArray[Any]

# Limits the float64 copy of the scores to a few megabytes for hundreds of classes.
_ROWS_AT_ONCE = 16384


def accuracy(scores: Array, labels: Array) -> float:
    """Return the fraction of rows whose highest score is at the label; the first one wins a tie."""
    check_scores(scores, labels, "classes")
    if not len(labels) or np.isnan(scores).any():
        return float("nan")
    return float(np.mean(scores.argmax(axis=1) == labels))


def macro_f1(scores: Array, labels: Array) -> float:
    """Return the mean one-vs-rest F1 over classes, in 0..1; the highest score is the prediction.

    Classes that occur neither as a label nor as a prediction are excluded.
    """
    check_scores(scores, labels, "classes")
    if np.isnan(scores).any():
        return float("nan")
    predicted, num_classes = scores.argmax(axis=1), scores.shape[1]
    hits = np.bincount(labels[predicted == labels], minlength=num_classes)
    # 2 TP + FP + FN: every row counts once for its label and once for its prediction.
    counted = np.bincount(labels, minlength=num_classes) + np.bincount(predicted, minlength=num_classes)
    present = counted > 0
    return float(np.mean(2 * hits[present] / counted[present])) if present.any() else float("nan")


def confusion_matrix(scores: Array, labels: Array) -> NDArray[np.int64]:
    """Return [C, C] counts: entry (i, j) is the number of rows with label i and their highest score at j.

    Parameters
    ----------
    scores
        [n, C]; the first of equal scores counts.
    labels
        [n] integers in 0..C-1, or -1 for unknown. Rows with an unknown label or a NaN score are not counted.
    """
    classes = scores.shape[1]
    known = (labels >= 0) & ~np.isnan(scores).any(1)
    pairs = labels[known].astype(np.int64) * classes + scores[known].argmax(1)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def log_odds(scores: Array) -> NDArray[np.float64]:
    """Return the [n, C] log-odds of each class against all other classes.

    Log-odds order rows like the softmax, but without its rounding near 0 and 1. For two classes, column 1 is
    the difference of the scores. Non-finite scores may give NaN.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        shifted = scores.astype(np.float64)
        shifted -= shifted.max(1, keepdims=True)
        exponentials = np.exp(shifted)
        highest = exponentials.argmax(1)[:, None]
        others = exponentials.sum(1, keepdims=True) - exponentials
        # The subtraction above would cancel for the highest class.
        np.put_along_axis(exponentials, highest, 0, axis=1)
        np.put_along_axis(others, highest, exponentials.sum(1, keepdims=True), axis=1)
        return np.asarray(shifted - np.log(others), np.float64)


def roc_auc(scores: Array, labels: Array) -> float:
    """Return the probability that a row of class 1 scores above a row of class 0; ties count half.

    Exact: the area under the ROC curve from the Mann-Whitney statistic, counted in integers.

    Parameters
    ----------
    scores
        [n] float, higher for class 1. The result is NaN if any score is NaN.
    labels
        [n] integer; both 0 and 1 must occur.

    Raises
    ------
    ValueError
        If the labels are not exactly the classes 0 and 1.
    """
    classes = np.unique(labels)
    if not np.array_equal(classes, (0, 1)):
        raise ValueError(f"ROC AUC needs both labels, 0 and 1, not {classes.tolist()[:9]}: give both")
    if np.isnan(scores).any():
        return float("nan")
    values, rank = np.unique(scores, return_inverse=True)
    positive = np.bincount(rank[labels == 1], minlength=len(values)).astype(np.int64)
    negative = np.bincount(rank[labels == 0], minlength=len(values)).astype(np.int64)
    negative_below = np.cumsum(negative) - negative
    doubled_wins = int(np.sum(positive * (2 * negative_below + negative)))
    return doubled_wins / (2 * int(positive.sum()) * int(negative.sum()))


def cross_entropy(scores: Array, labels: Array) -> float:
    """Return the mean of -log softmax(scores)[label] in nats, in float64; NaN if any score is infinite."""
    check_scores(scores, labels, "classes")
    total = 0.0
    # Scores of a diverged model are infinite, or so far apart that a probability is 0.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for start in range(0, len(labels), _ROWS_AT_ONCE):
            rows = scores[start : start + _ROWS_AT_ONCE].astype(np.float64)
            rows -= rows.max(axis=1, keepdims=True)
            label_scores = np.take_along_axis(
                rows, labels[start : start + _ROWS_AT_ONCE, None].astype(np.int64), axis=1
            )
            total += float(np.sum(np.log(np.exp(rows).sum(axis=1)) - label_scores[:, 0]))
    return total / len(labels) if len(labels) else float("nan")


def evaluate_metrics(scores: Array, labels: Array) -> dict[str, float]:
    """Return all metrics of a split: `accuracy`, `macro_f1`, `loss`, and `roc_auc` if two classes occur."""
    metrics = {
        "accuracy": accuracy(scores, labels),
        "macro_f1": macro_f1(scores, labels),
        "loss": cross_entropy(scores, labels),
    }
    if scores.shape[1] == 2 and len(np.unique(labels)) == 2:
        # The margin orders rows like the probability of class 1, but without its rounding near 0 and 1.
        with np.errstate(invalid="ignore"):
            margins = scores[:, 1].astype(np.float64) - scores[:, 0]
        metrics["roc_auc"] = roc_auc(margins, labels)
    return metrics


def check_weights(weights: Any) -> None:
    """Check that class weights are `none`, `balanced`, or non-negative numbers that are not all 0.

    Raises
    ------
    ValueError
        If the weights are invalid.
    """
    if isinstance(weights, str):
        if weights not in ("none", "balanced"):
            raise ArgumentError(f"class_weights is {show(weights)}: give none, balanced or a list of numbers")
        return
    try:
        numbers = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"class_weights is {show(weights)}: give none, balanced or a list of numbers"
        ) from None
    if numbers.ndim != 1 or not (np.isfinite(numbers) & (numbers >= 0)).all() or not numbers.any():
        raise ArgumentError(
            f"class_weights is {show(weights)}: give numbers of at least 0, not all of them 0"
        )


def given_class_weights(weights: Array, labels: Array) -> NDArray[np.float32]:
    """Return the [C] float32 class weights of the loss: the given weights, scaled to mean 1 over the targets.

    With this scale, the loss of all targets is a weighted mean.

    Raises
    ------
    ConfigError
        If every target has weight 0.
    """
    mean = float(np.mean(weights[labels])) if len(labels) else 1.0
    if not mean:
        raise ConfigError("train.class_weights is 0 for every class that training targets have: raise one")
    return (weights / mean).astype(np.float32)


def balanced_class_weights(labels: Array, num_classes: int) -> NDArray[np.float32]:
    """Return [C] float32 class weights: inverse to the class frequency, with mean 1 over the targets.

    A class that does not occur has weight 0.
    """
    counts = np.bincount(labels, minlength=num_classes)
    present = counts > 0
    weights = np.zeros(num_classes, np.float32)
    weights[present] = len(labels) / (np.count_nonzero(present) * counts[present])
    return weights
