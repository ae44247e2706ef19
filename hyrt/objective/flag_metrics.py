"""Metrics of multi-label classification: F1, average precision, ROC AUC and loss.

Scores are [n, K] floats before the sigmoid; labels are [n, K] integers: 1, 0, or -1 (unknown, ignored). A
label is predicted if its score is above 0. Metrics of an empty set, or with NaN scores, are NaN.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hyrt.objective.check_scores import check_scores
from hyrt.objective.metrics import Array, roc_auc


def f1_of_counts(hits: float, wrong: float, missed: float) -> float:
    """Return F1 in 0..1, which is 2 TP / (2 TP + FP + FN); NaN if all counts are 0."""
    return 2 * hits / (2 * hits + wrong + missed) if hits or wrong or missed else float("nan")


def micro_f1(counts: Mapping[str, float]) -> float:
    """Return the F1 over all labels of all targets, from the counts `hits`, `wrong` and `missed`."""
    return f1_of_counts(counts.get("hits", 0), counts.get("wrong", 0), counts.get("missed", 0))


def f1_scores(scores: Array, labels: Array) -> tuple[float, float]:
    """Return micro and macro F1.

    Macro F1 is the mean F1 over labels; labels without any positive target or prediction are excluded.
    """
    if np.isnan(scores[labels >= 0]).any():
        return float("nan"), float("nan")
    predicted = scores > 0
    hits, wrong, missed = (
        np.count_nonzero(each, axis=0)
        for each in (predicted & (labels == 1), predicted & (labels == 0), ~predicted & (labels == 1))
    )
    each = np.array([f1_of_counts(*one) for one in zip(hits, wrong, missed, strict=True)])
    defined = each[~np.isnan(each)]
    micro = f1_of_counts(int(hits.sum()), int(wrong.sum()), int(missed.sum()))
    return micro, float(defined.mean()) if len(defined) else float("nan")


def average_precision(scores: Array, labels: Array) -> float:
    """Return the sum of precision times recall gain over all distinct scores, in descending order.

    Parameters
    ----------
    scores
        [n] float. The result is NaN if any score is NaN.
    labels
        [n] integer, 0 or 1. The result is NaN if no label is 1.
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
    """Return the mean over known labels of -log(probability of the label, from the sigmoid), in nats.

    An infinite score has loss 0 if it is right, and infinite loss if it is wrong.
    """
    known = labels >= 0
    z, y = scores[known].astype(np.float64), labels[known]
    if not len(z):
        return float("nan")
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.mean(np.logaddexp(0, np.where(y == 1, -z, z))))


def flag_metrics(scores: Array, labels: Array) -> dict[str, float]:
    """Return all metrics of a split: `micro_f1`, `macro_f1`, `mean_average_precision`, `roc_auc` and `loss`.

    The average precision is averaged over labels with a positive target, the ROC AUC over labels with both
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
