"""What scores are worth where each target has K numbers: squared and absolute error, and R2.

Scores are [n, K] floats and labels [n, K] floats, nan for one that is not known, which counts nowhere. All is
computed in float64; metrics of nothing are nan, and so are those of scores that are nan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.objective.check_scores import check_scores

Array = NDArray[Any]


def determination(scores: Array, labels: Array) -> float:
    """Return R2 of one column, [n] float64: 1 - the sum of squared errors / that around the labels' mean.

    Nan for fewer than two rows. If all labels are equal it is 1 if all scores equal them, and otherwise 0.
    """
    if len(labels) < 2:
        return float("nan")
    error = float(np.sum((labels - scores) ** 2))
    # The mean of equal labels is rounded, so that their spread would not be 0.
    if labels.min() == labels.max():
        return error if np.isnan(error) else float(error == 0)
    return 1 - error / float(np.sum((labels - labels.mean()) ** 2))


def number_metrics(scores: Array, labels: Array) -> dict[str, float]:
    """All metrics of a split: `mse`, `mae` over all known numbers; `r2`, the mean of that of each column."""
    check_scores(scores, labels, "numbers")
    known = ~np.isnan(labels)
    if not known.any():
        return dict.fromkeys(("mse", "mae", "r2"), float("nan"))
    x, y = scores.astype(np.float64), labels.astype(np.float64)
    # Scores of a model that has diverged are infinite.
    with np.errstate(invalid="ignore", over="ignore"):
        off = (x - y)[known]
        each = [
            determination(x[rows, column], y[rows, column])
            for column, rows in enumerate(known.T)
            if rows.any()
        ]
        return {"mse": float(np.mean(off**2)), "mae": float(np.mean(np.abs(off))), "r2": float(np.mean(each))}
