"""What a model's scores are worth: accuracy, macro F1, ROC AUC, cross entropy, confusions; class weights.

Scores are [n, C] floats before softmax and labels [n] integers in 0..C-1. The metrics of no rows are nan, and
so are those of rows with a score that is nan: it is not a prediction, and no metric takes it for one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.errors import ArgumentError, ConfigError
from hyrt.objective.check_scores import check_scores

Array = NDArray[Any]

# Bounds the float64 copy of the scores to a few megabytes for hundreds of classes.
_ROWS_AT_ONCE = 16384


def accuracy(scores: Array, labels: Array) -> float:
    """Return the share in 0..1 of rows with the highest score at the label; of equal ones the first one."""
    check_scores(scores, labels, "classes")
    if not len(labels) or np.isnan(scores).any():
        return float("nan")
    return float(np.mean(scores.argmax(axis=1) == labels))


def macro_f1(scores: Array, labels: Array) -> float:
    """Mean in 0..1 over classes of the F1 of each against the rest; the highest score is the prediction.

    Classes that are neither a label nor a prediction of any row are left out of the mean.
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
    """[C, C] counts: of the rows with label i, how many have their highest score at j.

    Parameters
    ----------
    scores
        [n, C]; of equal ones the first counts.
    labels
        [n] integers in 0..C-1; -1 is not known, and not counted. Rows with a score that is nan are not
        counted either.
    """
    classes = scores.shape[1]
    known = (labels >= 0) & ~np.isnan(scores).any(1)
    pairs = labels[known].astype(np.int64) * classes + scores[known].argmax(1)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def log_odds(scores: Array) -> NDArray[np.float64]:
    """[n, C] logarithm of how likely each class is against all others together.

    It orders rows as the softmax does, without its rounding near 0 and 1. Of two classes, those of the second
    are the differences of the scores. Of a score that is not finite it may be nan.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        below = scores.astype(np.float64)
        below -= below.max(1, keepdims=True)
        parts = np.exp(below)
        highest = parts.argmax(1)[:, None]
        others = parts.sum(1, keepdims=True) - parts
        # There the difference would be of two nearly equal numbers.
        np.put_along_axis(parts, highest, 0, axis=1)
        np.put_along_axis(others, highest, parts.sum(1, keepdims=True), axis=1)
        return np.asarray(below - np.log(others), np.float64)


def roc_auc(scores: Array, labels: Array) -> float:
    """Probability that a row of class 1 scores above one of class 0, ties counting half.

    Exact: the area under the ROC curve by the Mann-Whitney statistic, counted in integers.

    Parameters
    ----------
    scores
        [n] float, higher for class 1. Where one is nan, the result is.
    labels
        [n] integer, 0 or 1, both present.

    Raises
    ------
    ValueError
        If not exactly the classes 0 and 1 are there.
    """
    classes = np.unique(labels)
    if not np.array_equal(classes, (0, 1)):
        raise ValueError(f"ROC AUC needs both labels, 0 and 1, not {classes.tolist()[:9]}: give both")
    if np.isnan(scores).any():
        return float("nan")
    values, place = np.unique(scores, return_inverse=True)
    positive = np.bincount(place[labels == 1], minlength=len(values)).astype(np.int64)
    negative = np.bincount(place[labels == 0], minlength=len(values)).astype(np.int64)
    negative_below = np.cumsum(negative) - negative
    twice_won = int(np.sum(positive * (2 * negative_below + negative)))
    return twice_won / (2 * int(positive.sum()) * int(negative.sum()))


def cross_entropy(scores: Array, labels: Array) -> float:
    """Mean of -log softmax(scores)[label] over the rows, in nats, in float64; nan where a score is inf."""
    check_scores(scores, labels, "classes")
    total = 0.0
    # Scores of a model that has diverged are infinite, or so far apart that a probability is 0.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for start in range(0, len(labels), _ROWS_AT_ONCE):
            rows = scores[start : start + _ROWS_AT_ONCE].astype(np.float64)
            rows -= rows.max(axis=1, keepdims=True)
            wanted = np.take_along_axis(
                rows, labels[start : start + _ROWS_AT_ONCE, None].astype(np.int64), axis=1
            )
            total += float(np.sum(np.log(np.exp(rows).sum(axis=1)) - wanted[:, 0]))
    return total / len(labels) if len(labels) else float("nan")


def evaluate_metrics(scores: Array, labels: Array) -> dict[str, float]:
    """All metrics of a split: `accuracy`, `macro_f1`, `loss`, and `roc_auc` where two classes occur."""
    metrics = {
        "accuracy": accuracy(scores, labels),
        "macro_f1": macro_f1(scores, labels),
        "loss": cross_entropy(scores, labels),
    }
    if scores.shape[1] == 2 and len(np.unique(labels)) == 2:
        # The margin orders rows as the probability of class 1 does, without its rounding near 0 and 1.
        with np.errstate(invalid="ignore"):
            margins = scores[:, 1].astype(np.float64) - scores[:, 0]
        metrics["roc_auc"] = roc_auc(margins, labels)
    return metrics


def check_weights(weights: Any) -> None:
    """Class weights are `none`, `balanced`, or numbers that are not below 0 and not all 0.

    Raises
    ------
    ValueError
        If they are not.
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
    """[C] float32 weight of each class in the loss: as given, scaled to mean 1 over the targets.

    So the loss of all targets is their weighted mean.

    Raises
    ------
    ConfigError
        If every target weighs 0.
    """
    mean = float(np.mean(weights[labels])) if len(labels) else 1.0
    if not mean:
        raise ConfigError("train.class_weights is 0 for every class that training targets have")
    return (weights / mean).astype(np.float32)


def balanced_class_weights(labels: Array, num_classes: int) -> NDArray[np.float32]:
    """[C] float32 weight of each class in the loss: inverse to its share, with mean 1 over the targets.

    A class that does not occur weighs 0.
    """
    counts = np.bincount(labels, minlength=num_classes)
    present = counts > 0
    weights = np.zeros(num_classes, np.float32)
    weights[present] = len(labels) / (np.count_nonzero(present) * counts[present])
    return weights
