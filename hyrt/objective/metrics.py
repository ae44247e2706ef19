"""Metrics of classification, multi-label classification and regression, class weights, and checks of scores,
labels and values that objectives return. Metrics of an empty set, or with NaN scores, are NaN. Unknown labels
(-1, or NaN in regression) are ignored.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.errors import ArgumentError, ConfigError
from hyrt.graph.labels import LabelKind
from hyrt.objective.objective import OBJECTIVES, Objective

_LABELS: dict[str, tuple[int, str, str]] = {
    "classes": (1, "iu", "the class of each target as integers [n]"),
    "flags": (2, "iubf", "0, 1 or -1 for each label of each target as numbers [n, K]"),
    "numbers": (2, "f", "the regression values of each target as floats [n, K]"),
}


def _kind(value: Any) -> str:
    """Return the numpy dtype kind of a tensor or array; "" for any other value."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            return "f"
        if value.dtype in (torch.bool, torch.uint8):
            return "b" if value.dtype == torch.bool else "u"
        return "i" if value.dtype in (torch.int8, torch.int16, torch.int32, torch.int64) else "?"
    return value.dtype.kind if isinstance(value, np.ndarray) else ""


def check_labels(labels: Any, kind: LabelKind) -> None:
    """Raise ArgumentError if the labels are not an array or a tensor that fits their kind."""
    ndim, letters, description = _LABELS[kind]
    if not _kind(labels) or _kind(labels) not in letters or labels.ndim != ndim:
        raise ArgumentError(f"labels is {show(labels)}: pass {description}")
    if kind == "classes" and isinstance(labels, torch.Tensor) and labels.dtype != torch.int64:
        raise ArgumentError(f"labels is {show(labels)}: pass classes as torch.int64")
    is_on_device = isinstance(labels, torch.Tensor) and labels.device.type != "cpu"
    if (
        kind == "flags"
        and not is_on_device
        and math.prod(labels.shape)
        and not -1 <= labels.min() <= labels.max() <= 1
    ):
        raise ArgumentError("labels must be 0, 1 or -1 (unknown), but some are not: replace them")


def check_scores(scores: Any, labels: Any, kind: LabelKind, weights: Any = None) -> None:
    """Raise ArgumentError unless scores [n, C], labels of kind `kind` and weights (None or [n]) match.

    Scores and labels must be either both tensors or both arrays.
    """
    check_labels(labels, kind)
    if _kind(scores) != "f" or isinstance(scores, torch.Tensor) != isinstance(labels, torch.Tensor):
        container = "tensor" if isinstance(labels, torch.Tensor) else "numpy array"
        raise ArgumentError(f"scores is {show(scores)}: pass a {container} of floats [n, C], like labels")
    if scores.ndim != 2 or len(scores) != len(labels):
        raise ArgumentError(
            f"scores is {show(scores)} for {len(labels):,} labels: pass [n, C], one row per label"
        )
    if kind != "classes":
        if scores.shape != labels.shape:
            noun = "labels" if kind == "flags" else "numbers"
            raise ArgumentError(
                f"the model returns {scores.shape[1]} scores per target, but each target has "
                f"{labels.shape[1]} {noun}: return one score per {noun[:-1]}"
            )
    # On other devices, reading the values would have to wait for all queued work.
    elif len(labels) and (not isinstance(labels, torch.Tensor) or labels.device.type == "cpu"):
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= scores.shape[1]:
            raise ArgumentError(
                f"labels range from {low} to {high}, but scores has {scores.shape[1]} classes: use labels "
                f"from 0 to {scores.shape[1] - 1}, or return a score for each class"
            )
    if weights is not None and (_kind(weights) != "f" or tuple(weights.shape) != (len(labels),)):
        raise ArgumentError(
            f"weights is {show(weights)} for {len(labels):,} targets: pass one float per target, or None"
        )


def objective_error(name: str, problem: str) -> ConfigError:
    """Return a ConfigError with the name of the objective and the distribution that declares it."""
    return ConfigError(f"{OBJECTIVES.describe(name)}: {problem}")


def check_names(objective: Objective) -> None:
    """Raise ConfigError unless `counts`, `metrics` and `lowest_is_best` are tuples or lists of names."""
    for attribute in ("counts", "metrics", "lowest_is_best"):
        names = getattr(objective, attribute)
        if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
            raise objective_error(
                objective.name, f"{attribute} is {show(names)}: set it to a tuple of names, such as ('loss',)"
            )


def check_loss(objective: Objective, loss: Any) -> torch.Tensor:
    """Return the loss sum if it is a differentiable scalar; otherwise raise ConfigError."""
    remedy = "return a float32 scalar tensor that is computed from the scores"
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        raise objective_error(objective.name, f"loss_sum returns {show(loss)}, not a scalar tensor: {remedy}")
    if not loss.requires_grad:
        raise objective_error(
            objective.name, f"loss_sum returns a number that does not depend on the scores: {remedy}"
        )
    return loss.reshape(())


def check_numbers(name: str, method: str, values: Any) -> dict[str, float]:
    """Return the result of an objective's method as Python numbers by name; raise ConfigError if it has other
    values.
    """
    if not isinstance(values, Mapping):
        raise objective_error(name, f"{method} returns {show(values)}: return a dict from names to numbers")
    numbers_by_name: dict[str, float] = {}
    for key, value in values.items():
        is_scalar = isinstance(value, torch.Tensor | np.ndarray) and math.prod(value.shape) == 1
        number = value.item() if is_scalar else value
        if not isinstance(key, str):
            raise objective_error(
                name, f"{method} returns {show(key)} as a key: return a dict from names to numbers"
            )
        if not isinstance(number, numbers.Real):
            raise objective_error(name, f"{method} returns {show(value)} for {key}: return a number")
        numbers_by_name[key] = number  # type: ignore[assignment]
    return numbers_by_name


def check_class_weights(name: str, weights: Any, num_classes: int) -> NDArray[np.float32] | None:
    """Return class weights as contiguous float32, or None; raise ConfigError if they are invalid."""
    if weights is None:
        return None
    is_array = isinstance(weights, np.ndarray) and weights.dtype.kind in "iuf"
    if not is_array or weights.shape != (num_classes,) or not (np.isfinite(weights) & (weights >= 0)).all():
        shown = show(weights)
        if is_array and weights.shape == (num_classes,):
            shown = "numbers that are negative or not finite"
        raise objective_error(
            name,
            f"class_weights returns {shown}: return None, or a numpy array of {num_classes:,} finite, "
            "non-negative numbers",
        )
    return np.ascontiguousarray(weights, np.float32)


Array = NDArray[Any]

# Number of rows per chunk, which limits the float64 copy of the scores to a few megabytes.
_ROWS_AT_ONCE = 16384


def accuracy(scores: Array, labels: Array) -> float:
    """Return the fraction of rows whose label has the highest score; the first of equal scores counts."""
    check_scores(scores, labels, "classes")
    if not len(labels) or np.isnan(scores).any():
        return float("nan")
    return float(np.mean(scores.argmax(axis=1) == labels))


def macro_f1(scores: Array, labels: Array) -> float:
    """Return the mean F1 (0 to 1) of each class against all others; the highest score is the prediction.

    Classes without any label or prediction are excluded.
    """
    check_scores(scores, labels, "classes")
    if np.isnan(scores).any():
        return float("nan")
    predicted, num_classes = scores.argmax(axis=1), scores.shape[1]
    hits = np.bincount(labels[predicted == labels], minlength=num_classes)
    # 2 TP + FP + FN: each row counts once for its label and once for its prediction.
    counted = np.bincount(labels, minlength=num_classes) + np.bincount(predicted, minlength=num_classes)
    present = counted > 0
    return float(np.mean(2 * hits[present] / counted[present])) if present.any() else float("nan")


def confusion_matrix(scores: Array, labels: Array) -> NDArray[np.int64]:
    """Return counts [C, C]: entry (i, j) counts rows with label i whose highest score is at j.

    If scores are equal, the first one counts. Rows with an unknown label (-1) or a NaN score are not counted.
    """
    classes = scores.shape[1]
    known = (labels >= 0) & ~np.isnan(scores).any(1)
    pairs = labels[known].astype(np.int64) * classes + scores[known].argmax(1)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def log_odds(scores: Array) -> NDArray[np.float64]:
    """Return the log-odds [n, C] of each class against all other classes.

    Log-odds order rows like the softmax, but without its rounding near 0 and 1. For two classes, column 1 is
    the difference of the scores. Scores that are not finite may give NaN.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        shifted = scores.astype(np.float64)
        shifted -= shifted.max(1, keepdims=True)
        exponentials = np.exp(shifted)
        highest = exponentials.argmax(1)[:, None]
        others = exponentials.sum(1, keepdims=True) - exponentials
        # For the highest class, the subtraction above would cause cancellation.
        np.put_along_axis(exponentials, highest, 0, axis=1)
        np.put_along_axis(others, highest, exponentials.sum(1, keepdims=True), axis=1)
        return np.asarray(shifted - np.log(others), np.float64)


def roc_auc(scores: Array, labels: Array) -> float:
    """Return the probability that a row of class 1 has a higher score than a row of class 0; ties count half.

    This is the exact area under the ROC curve, from the Mann-Whitney statistic in integers. NaN if any of the
    [n] scores is NaN. Raises ValueError unless the [n] integer labels are exactly the classes 0 and 1.
    """
    classes = np.unique(labels)
    if not np.array_equal(classes, (0, 1)):
        raise ValueError(f"ROC AUC needs both labels, 0 and 1, got {classes.tolist()[:9]}: pass both")
    if np.isnan(scores).any():
        return float("nan")
    values, rank = np.unique(scores, return_inverse=True)
    positive = np.bincount(rank[labels == 1], minlength=len(values)).astype(np.int64)
    negative = np.bincount(rank[labels == 0], minlength=len(values)).astype(np.int64)
    negative_below = np.cumsum(negative) - negative
    doubled_wins = int(np.sum(positive * (2 * negative_below + negative)))
    return doubled_wins / (2 * int(positive.sum()) * int(negative.sum()))


def cross_entropy(scores: Array, labels: Array) -> float:
    """Return the mean of -log softmax(scores)[label] in nats, as float64; NaN if any score is infinite."""
    check_scores(scores, labels, "classes")
    total = 0.0
    # If a model has diverged, scores are infinite, or differ so much that a probability is 0.
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for start in range(0, len(labels), _ROWS_AT_ONCE):
            rows = scores[start : start + _ROWS_AT_ONCE].astype(np.float64)
            rows -= rows.max(axis=1, keepdims=True)
            label_scores = np.take_along_axis(
                rows, labels[start : start + _ROWS_AT_ONCE, None].astype(np.int64), axis=1
            )
            total += float(np.sum(np.log(np.exp(rows).sum(axis=1)) - label_scores[:, 0]))
    return total / len(labels) if len(labels) else float("nan")


def classification_metrics(scores: Array, labels: Array) -> dict[str, float]:
    """Return all metrics of a split: `accuracy`, `macro_f1`, `loss`, and for two classes `roc_auc`."""
    metrics = {
        "accuracy": accuracy(scores, labels),
        "macro_f1": macro_f1(scores, labels),
        "loss": cross_entropy(scores, labels),
    }
    if scores.shape[1] == 2 and len(np.unique(labels)) == 2:
        # The difference orders rows like the probability of class 1, but without its rounding near 0 and 1.
        with np.errstate(invalid="ignore"):
            margins = scores[:, 1].astype(np.float64) - scores[:, 0]
        metrics["roc_auc"] = roc_auc(margins, labels)
    return metrics


def check_weights(weights: Any) -> None:
    """Raise ValueError unless class weights are `none`, `balanced`, or non-negative numbers, not all of them
    0.
    """
    if isinstance(weights, str):
        if weights not in ("none", "balanced"):
            raise ArgumentError(f"class_weights is {show(weights)}: use none, balanced or a list of numbers")
        return
    try:
        numbers = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"class_weights is {show(weights)}: use none, balanced or a list of numbers"
        ) from None
    if numbers.ndim != 1 or not (np.isfinite(numbers) & (numbers >= 0)).all() or not numbers.any():
        raise ArgumentError(f"class_weights is {show(weights)}: use non-negative numbers that are not all 0")


def scale_class_weights(weights: Array, labels: Array) -> NDArray[np.float32]:
    """Scale class weights [C] to mean 1 over the targets, which makes the total loss a weighted mean.

    Returns float32. Raises ConfigError if the weights of all targets are 0.
    """
    mean = float(np.mean(weights[labels])) if len(labels) else 1.0
    if not mean:
        raise ConfigError("train.class_weights is 0 for all classes of the training targets: raise one")
    return (weights / mean).astype(np.float32)


def balanced_class_weights(labels: Array, num_classes: int) -> NDArray[np.float32]:
    """Return class weights [C] float32 that are inverse to class frequencies, with mean 1 over the targets.

    A class that does not occur has weight 0.
    """
    counts = np.bincount(labels, minlength=num_classes)
    present = counts > 0
    weights = np.zeros(num_classes, np.float32)
    weights[present] = len(labels) / (np.count_nonzero(present) * counts[present])
    return weights


def f1_from_counts(hits: float, wrong: float, missed: float) -> float:
    """Return F1 in 0..1, which is 2 TP / (2 TP + FP + FN); NaN if all counts are 0."""
    return 2 * hits / (2 * hits + wrong + missed) if hits or wrong or missed else float("nan")


def micro_f1(counts: Mapping[str, float]) -> float:
    """Return F1 over all labels of all targets, computed from the counts `hits`, `wrong` and `missed`."""
    return f1_from_counts(counts.get("hits", 0), counts.get("wrong", 0), counts.get("missed", 0))


def f1_scores(scores: Array, labels: Array) -> tuple[float, float]:
    """Return micro and macro F1.

    Macro F1 is the mean F1 over labels, without labels that have no positive target or prediction.
    """
    if np.isnan(scores[labels >= 0]).any():
        return float("nan"), float("nan")
    predicted = scores > 0
    hits, wrong, missed = (
        np.count_nonzero(each, axis=0)
        for each in (predicted & (labels == 1), predicted & (labels == 0), ~predicted & (labels == 1))
    )
    each = np.array([f1_from_counts(*one) for one in zip(hits, wrong, missed, strict=True)])
    defined = each[~np.isnan(each)]
    micro = f1_from_counts(int(hits.sum()), int(wrong.sum()), int(missed.sum()))
    return micro, float(defined.mean()) if len(defined) else float("nan")


def average_precision(scores: Array, labels: Array) -> float:
    """Return the sum of precision times increase in recall over all distinct scores, in descending order.

    The result is NaN if any of the [n] scores is NaN, or if no label is 1.
    """
    positives = int(np.count_nonzero(labels == 1))
    if not positives or np.isnan(scores).any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    hits = np.cumsum(labels[order] == 1, dtype=np.int64)[ends]
    new_hits = np.diff(hits, prepend=0)
    return float(np.sum(new_hits * (hits / (ends + 1))) / positives)


def binary_cross_entropy(scores: Array, labels: Array) -> float:
    """Return the mean of -log(sigmoid probability of the label) over all known labels, in nats.

    If a score is infinite, its loss is 0 if the score is right, and infinite if it is wrong.
    """
    known = labels >= 0
    z, y = scores[known].astype(np.float64), labels[known]
    if not len(z):
        return float("nan")
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.mean(np.logaddexp(0, np.where(y == 1, -z, z))))


def multilabel_metrics(scores: Array, labels: Array) -> dict[str, float]:
    """Return all metrics of a split: `micro_f1`, `macro_f1`, `mean_average_precision`, `roc_auc` and `loss`.

    Average precision is averaged over labels with a positive target, and ROC AUC over labels that have both
    positive and negative targets.
    """
    check_scores(scores, labels, "flags")
    micro, macro = f1_scores(scores, labels)
    precisions, areas = [], []
    for column in range(labels.shape[1]):
        known = labels[:, column] >= 0
        z, y = scores[known, column], labels[known, column]
        if (y == 1).any():
            precisions.append(average_precision(z, y))
            if (y == 0).any():
                areas.append(roc_auc(z, y))
    return {
        "micro_f1": micro,
        "macro_f1": macro,
        "mean_average_precision": float(np.mean(precisions)) if precisions else float("nan"),
        "roc_auc": float(np.mean(areas)) if areas else float("nan"),
        "loss": binary_cross_entropy(scores, labels),
    }


def r2_score(scores: Array, labels: Array) -> float:
    """Return R2 of a column [n], as float64: 1 - (sum of squared errors) / (sum of squared deviations).

    NaN for fewer than two rows. If all labels are equal, R2 is 1 if all scores equal the label, otherwise 0.
    """
    if len(labels) < 2:
        return float("nan")
    error = float(np.sum((labels - scores) ** 2))
    # The mean of equal labels is rounded, so their deviations from it may not be exactly 0.
    if labels.min() == labels.max():
        return error if np.isnan(error) else float(error == 0)
    return 1 - error / float(np.sum((labels - labels.mean()) ** 2))


def regression_metrics(scores: Array, labels: Array) -> dict[str, float]:
    """Return all metrics of a split: `mse` and `mae` of all known values, and the mean `r2` of columns."""
    check_scores(scores, labels, "numbers")
    known = ~np.isnan(labels)
    if not known.any():
        return dict.fromkeys(("mse", "mae", "r2"), float("nan"))
    x, y = scores.astype(np.float64), labels.astype(np.float64)
    # If a model has diverged, scores are infinite.
    with np.errstate(invalid="ignore", over="ignore"):
        errors = (x - y)[known]
        column_scores = [
            r2_score(x[rows, column], y[rows, column]) for column, rows in enumerate(known.T) if rows.any()
        ]
        return {
            "mse": float(np.mean(errors**2)),
            "mae": float(np.mean(np.abs(errors))),
            "r2": float(np.mean(column_scores)),
        }


def mean_known_entries(known: NDArray[np.bool_]) -> float | None:
    """Return the mean number of known entries per target in a mask [n, K]; None if all are unknown."""
    entries = int(np.count_nonzero(known))
    return entries / len(known) if entries else None
