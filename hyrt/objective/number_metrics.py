"""Metrics of regression: squared error, absolute error and R2.

Scores and labels are [n, K] floats; NaN labels are unknown and ignored. All metrics are computed in float64.
Metrics of an empty set, or with NaN scores, are NaN.
"""

from __future__ import annotations

import numpy as np

from hyrt.objective.check_scores import check_scores
from hyrt.objective.metrics import Array


def determination(scores: Array, labels: Array) -> float:
    """Return R2 of one column, [n] float64: 1 - (sum of squared errors) / (sum of squared deviations).

    NaN for fewer than two rows. If all labels are equal, the result is 1 if all scores equal them, otherwise
    0.
    """
    if len(labels) < 2:
        return float("nan")
    error = float(np.sum((labels - scores) ** 2))
    # The mean of equal labels is rounded, so their deviation would not be exactly 0.
    if labels.min() == labels.max():
        return error if np.isnan(error) else float(error == 0)
    return 1 - error / float(np.sum((labels - labels.mean()) ** 2))


def number_metrics(scores: Array, labels: Array) -> dict[str, float]:
    """Return all metrics of a split: `mse` and `mae` over all known values; `r2` averaged over columns."""
    check_scores(scores, labels, "numbers")
    known = ~np.isnan(labels)
    if not known.any():
        return dict.fromkeys(("mse", "mae", "r2"), float("nan"))
    x, y = scores.astype(np.float64), labels.astype(np.float64)
    # Scores of a diverged model are infinite.
    with np.errstate(invalid="ignore", over="ignore"):
        errors = (x - y)[known]
        column_scores = [
            determination(x[rows, column], y[rows, column])
            for column, rows in enumerate(known.T)
            if rows.any()
        ]
        return {
            "mse": float(np.mean(errors**2)),
            "mae": float(np.mean(np.abs(errors))),
            "r2": float(np.mean(column_scores)),
        }
