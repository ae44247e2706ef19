"""Receiver operating characteristic (ROC) curves of classes or labels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.objective.metrics import log_odds, roc_auc
from hyrt.quantities import one_line
from hyrt.report.plots.plot_file import save_plot

Array = NDArray[Any]

# In inches: a column of most papers.
_WIDTH = 3.4
_FONT_POINTS = 8
# More curves cannot be distinguished, and more points are not visible.
_MAX_CURVES, _MAX_POINTS = 10, 1000


@dataclass(frozen=True, slots=True)
class RocCurve:
    """ROC curve of one class or label against all others."""

    name: str
    num_positive: int
    """Number of positive rows."""
    area: float
    """Area under the curve, in 0..1."""
    wrong: NDArray[np.float64]
    right: NDArray[np.float64]
    """[p] rates in 0..1, both increasing from 0 to 1: for each threshold, the false positive rate and the
    true positive rate.
    """

    __repr__ = one_line


def roc_points(scores: Array, positive: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Compute false and true positive rates at each distinct score, from (0, 0) and the highest score on.

    Parameters
    ----------
    scores
        [n] float, without nan.
    positive
        [n], with at least one true and one false entry.
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    true_positives = np.cumsum(positive[order], dtype=np.int64)[ends]
    false_positives = ends + 1 - true_positives
    return np.append(0.0, false_positives / false_positives[-1]), np.append(
        0.0, true_positives / true_positives[-1]
    )


def roc_curves(scores: Array, labels: Array) -> list[RocCurve]:
    """Compute one curve for two classes, one per class for several, or one per binary label for K labels.

    A class or label without both positive and negative rows has no curve.

    Parameters
    ----------
    scores
        [n, C] float scores of a model.
    labels
        [n] integer classes, or [n, K] of 0 and 1; -1 if unknown.
    """
    if labels.ndim == 2:
        columns = [(f"label {index}", scores[:, index], labels[:, index]) for index in range(labels.shape[1])]
    elif scores.shape[1] == 2:
        # As in the metric roc_auc.
        margin = scores[:, 1].astype(np.float64) - scores[:, 0]
        columns = [("class 1", margin, labels)]
    else:
        odds = log_odds(scores)
        columns = [
            (f"class {index}", odds[:, index], np.where(labels < 0, -1, labels == index))
            for index in range(scores.shape[1])
        ]
    curves = []
    for name, column_scores, column_labels in columns:
        z, y = column_scores[column_labels >= 0], column_labels[column_labels >= 0]
        if (y == 1).any() and (y == 0).any():
            false_rates, true_rates = roc_points(z, y == 1)
            curves.append(
                RocCurve(name, int(np.count_nonzero(y == 1)), roc_auc(z, y), false_rates, true_rates)
            )
    return curves


def plot_roc(curves: list[RocCurve], split: str, path: Path) -> None:
    """Plot curves; of many curves, those with the most positive rows.

    Parameters
    ----------
    curves
        At least one curve.
    split
        Name of the split, for the title.
    path
        Output file; its suffix determines the format.

    Raises
    ------
    DataNotWritten
        If the file cannot be written.
    """
    from matplotlib import colormaps, rc_context
    from matplotlib.figure import Figure

    shown = sorted(range(len(curves)), key=lambda index: -curves[index].num_positive)[:_MAX_CURVES]
    with rc_context({"font.size": _FONT_POINTS}):
        figure = Figure(figsize=(_WIDTH, _WIDTH), layout="constrained", dpi=200)
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=0.8, linestyle="--")
        for colour, index in enumerate(sorted(shown)):
            curve = curves[index]
            points = _visible_points(curve)
            axes.plot(
                curve.wrong[points],
                curve.right[points],
                color=colormaps["tab10"](colour),
                linewidth=1,
                label=f"{curve.name}, area {curve.area:.3f}",
            )
        axes.set_aspect("equal")
        axes.set_xlabel("false positive rate")
        axes.set_ylabel("true positive rate")
        title = f"{split}: area {curves[0].area:.3f}"
        if len(curves) > 1:
            mean = sum(curve.area for curve in curves) / len(curves)
            title = f"{split}: mean area {mean:.3f} of {len(curves)} curves"
        if len(shown) < len(curves):
            title += f"\nthe {len(shown)} with most {split} vertices are drawn"
        axes.set_title(title, fontsize=_FONT_POINTS)
        axes.legend(frameon=False, fontsize=_FONT_POINTS - 2, loc="lower right")
        save_plot(figure, path)


def _visible_points(curve: RocCurve) -> NDArray[np.int64]:
    """Select all points, or about as many as are visible, evenly along the curve."""
    if len(curve.wrong) <= _MAX_POINTS:
        return np.arange(len(curve.wrong))
    indices = np.searchsorted(curve.wrong + curve.right, np.linspace(0, 2, _MAX_POINTS))
    return np.unique(np.minimum(indices, len(curve.wrong) - 1))
