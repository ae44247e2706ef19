"""How well scores tell classes or labels apart, as curves (receiver operating characteristic)."""

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

# Inches: a column of most papers.
_WIDTH = 3.4
_FONT_POINTS = 8
# More curves are not told apart, and more points are not seen.
_MOST_CURVES, _MOST_POINTS = 10, 1000


@dataclass(frozen=True, slots=True)
class RocCurve:
    """The curve of one class or label against all else."""

    name: str
    num_positive: int
    """How many rows have it."""
    area: float
    """Below the curve, in 0..1."""
    wrong: NDArray[np.float64]
    right: NDArray[np.float64]
    """[p] parts in 0..1, both rising from 0 to 1: for each lowest score that counts as a yes, the false
    positive rate and the true positive rate."""

    __repr__ = one_line


def roc_points(scores: Array, positive: NDArray[np.bool_]) -> tuple[Array, Array]:
    """False and true positive rates at each distinct score, the highest first, with (0, 0) before them.

    Parameters
    ----------
    scores
        [n] float, without nan.
    positive
        [n], with both a true one and a false one.
    """
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    right = np.cumsum(positive[order], dtype=np.int64)[ends]
    wrong = ends + 1 - right
    return np.append(0.0, wrong / wrong[-1]), np.append(0.0, right / right[-1])


def roc_curves(scores: Array, labels: Array) -> list[RocCurve]:
    """One curve of two classes, one for each of several, or one for each of K labels of 0 and 1.

    A class or label that no row has, or every row, has no curve.

    Parameters
    ----------
    scores
        [n, C] float, of a model.
    labels
        [n] integer classes, or [n, K] of 0 and 1; -1 where one is not known.
    """
    if labels.ndim == 2:
        named = [(f"label {each}", scores[:, each], labels[:, each]) for each in range(labels.shape[1])]
    elif scores.shape[1] == 2:
        # As the metric roc_auc does.
        margin = scores[:, 1].astype(np.float64) - scores[:, 0]
        named = [("class 1", margin, labels)]
    else:
        odds = log_odds(scores)
        named = [
            (f"class {each}", odds[:, each], np.where(labels < 0, -1, labels == each))
            for each in range(scores.shape[1])
        ]
    curves = []
    for name, given, of in named:
        z, y = given[of >= 0], of[of >= 0]
        if (y == 1).any() and (y == 0).any():
            wrong, right = roc_points(z, y == 1)
            curves.append(RocCurve(name, int(np.count_nonzero(y == 1)), roc_auc(z, y), wrong, right))
    return curves


def plot_roc(curves: list[RocCurve], split: str, path: Path) -> None:
    """Plot curves, of many those that most rows have.

    Parameters
    ----------
    curves
        At least one.
    split
        Which vertices they are of, for the title.
    path
        The file; its ending chooses the format.

    Raises
    ------
    DataNotWritten
        If it cannot be written.
    """
    from matplotlib import colormaps, rc_context
    from matplotlib.figure import Figure

    most = sorted(range(len(curves)), key=lambda each: -curves[each].num_positive)[:_MOST_CURVES]
    with rc_context({"font.size": _FONT_POINTS}):
        figure = Figure(figsize=(_WIDTH, _WIDTH), layout="constrained", dpi=200)
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=0.8, linestyle="--")
        for colour, each in enumerate(sorted(most)):
            curve = curves[each]
            seen = _points_to_draw(curve)
            axes.plot(
                curve.wrong[seen],
                curve.right[seen],
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
        if len(most) < len(curves):
            title += f"\nthe {len(most)} with most {split} vertices are drawn"
        axes.set_title(title, fontsize=_FONT_POINTS)
        axes.legend(frameon=False, fontsize=_FONT_POINTS - 2, loc="lower right")
        save_plot(figure, path)


def _points_to_draw(curve: RocCurve) -> NDArray[np.int64]:
    """All, or about as many as are seen, evenly along the curve."""
    if len(curve.wrong) <= _MOST_POINTS:
        return np.arange(len(curve.wrong))
    along = np.searchsorted(curve.wrong + curve.right, np.linspace(0, 2, _MOST_POINTS))
    return np.unique(np.minimum(along, len(curve.wrong) - 1))
