"""What scores are worth where each target has K labels of 0 and 1: F1, average precision, ROC AUC, loss.

Scores are [n, K] floats before the sigmoid and labels [n, K] integers: 1, 0, or -1 for one that is not known,
which counts nowhere. A label is predicted if its score is above 0. Metrics of nothing are nan, and so are
those of scores that are nan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.objective.check_scores import check_scores
from hyrt.objective.metrics import roc_auc

Array = NDArray[Any]


def f1_of_counts(hits: float, wrong: float, missed: float) -> float:
    """F1 in 0..1: 2 TP / (2 TP + FP + FN); nan of nothing."""
    return 2 * hits / (2 * hits + wrong + missed) if hits or wrong or missed else float("nan")


def micro_f1(counts: Mapping[str, float]) -> float:
    """F1 over all labels of all targets together, from the counts `hits`, `wrong` and `missed`."""
    return f1_of_counts(counts.get("hits", 0), counts.get("wrong", 0), counts.get("missed", 0))


def f1_scores(scores: Array, labels: Array) -> tuple[float, float]:
    """Micro and macro F1.

    The macro F1 is the mean over the labels of the F1 of each; one that no target has or is predicted to have
    is left out of it.
    """
    if np.isnan(scores[labels >= 0]).any():
        return float("nan"), float("nan")
    predicted = scores > 0
    hits, wrong, missed = (
        np.count_nonzero(each, axis=0)
        for each in (predicted & (labels == 1), predicted & (labels == 0), ~predicted & (labels == 1))
    )
    each = np.array([f1_of_counts(*one) for one in zip(hits, wrong, missed, strict=True)])
    there = each[~np.isnan(each)]
    micro = f1_of_counts(int(hits.sum()), int(wrong.sum()), int(missed.sum()))
    return micro, float(there.mean()) if len(there) else float("nan")


def average_precision(scores: Array, labels: Array) -> float:
    """Sum over the distinct scores, the highest first, of precision times what recall gains there.

    Parameters
    ----------
    scores
        [n] float. Where one is nan, the result is.
    labels
        [n] integer, 0 or 1; without a 1 the result is nan.
    """
    positives = int(np.count_nonzero(labels == 1))
    if not positives or np.isnan(scores).any():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    hits = np.cumsum(labels[order] == 1, dtype=np.int64)[ends]
    gained = np.diff(hits, prepend=0)
    return float(np.sum(gained * (hits / (ends + 1))) / positives)


def binary_cross_entropy(scores: Array, labels: Array) -> float:
    """Return the mean over the known labels of -log of the probability that the sigmoid gives them, in nats.

    An infinite score costs nothing if it is right, and infinitely much if it is wrong.
    """
    known = labels >= 0
    z, y = scores[known].astype(np.float64), labels[known]
    if not len(z):
        return float("nan")
    with np.errstate(invalid="ignore", over="ignore"):
        return float(np.mean(np.logaddexp(0, np.where(y == 1, -z, z))))


def flag_metrics(scores: Array, labels: Array) -> dict[str, float]:
    """All metrics of a split: `micro_f1`, `macro_f1`, `mean_average_precision`, `roc_auc` and `loss`.

    The average precision is the mean over the labels that some target has, and the ROC AUC the mean over
    those that some target has and another has not.
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
