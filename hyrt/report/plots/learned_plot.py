"""What a run has learned, as figures for papers: embeddings on a plane, and classes taken for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.report.plots.plot_file import save_plot

Array = NDArray[Any]

# Inches: a column of most papers.
_WIDTH = 3.4
_FONT_POINTS = 8
# More colours are not told apart, and more numbers cannot be read.
_MOST_NAMED, _MOST_NUMBERS = 20, 12


def principal_plane(rows: Array) -> tuple[Array, tuple[float, float]]:
    """Rows on the plane along which they differ most: principal component analysis (Pearson, 1901).

    Parameters
    ----------
    rows
        [n, width] numbers.

    Returns
    -------
    [n, 2] float64 places, of which the component of an axis with the largest weight is positive, and the
    parts of the variance along both axes. Of a single column the second is zero.
    """
    centred = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    variances, axes = np.linalg.eigh(centred.T @ centred)
    first = axes[:, ::-1][:, :2]
    first = first * np.sign(first[np.abs(first).argmax(0), np.arange(first.shape[1])])
    places = np.zeros((len(rows), 2))
    places[:, : first.shape[1]] = centred @ first
    total = variances.sum()
    parts = [*(variances[::-1] / total if total > 0 else np.zeros_like(variances)), 0.0]
    return places, (float(parts[0]), float(parts[1]))


def confusion_matrix(scores: Array, labels: Array) -> NDArray[np.int64]:
    """[C, C] counts: of the rows with label i, how many have their highest score at j.

    Parameters
    ----------
    scores
        [n, C]; of equal ones the first counts.
    labels
        [n] integers in 0..C-1; -1 is not known, and not counted.
    """
    classes = scores.shape[1]
    known = labels >= 0
    pairs = labels[known].astype(np.int64) * classes + scores[known].argmax(1)
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def plot_embeddings(rows: Array, labels: Array | None, path: Path) -> None:
    """Plot rows on their principal plane, in the colours of their classes.

    Parameters
    ----------
    rows
        [n, width] embeddings.
    labels
        [n] classes, -1 where one is not known; None where there are none.
    path
        The file; its ending chooses the format.

    Raises
    ------
    DataNotWritten
        If it cannot be written.
    """
    from matplotlib import colormaps, rc_context
    from matplotlib.figure import Figure

    places, parts = principal_plane(rows)
    found = [None] if labels is None else np.unique(labels).tolist()
    named = len(found) <= _MOST_NAMED
    colours = colormaps["tab10" if len(found) <= 10 else "tab20"]
    with rc_context({"font.size": _FONT_POINTS}):
        figure = Figure(figsize=(_WIDTH, _WIDTH), layout="constrained", dpi=200)
        axes = figure.subplots()
        for number, label in enumerate(found):
            mine = slice(None) if label is None or labels is None else labels == label
            is_unknown = label == -1
            axes.scatter(
                places[mine, 0],
                places[mine, 1],
                s=4,
                linewidths=0,
                color="0.8" if is_unknown else colours(number % colours.N),
                label="not known" if is_unknown else f"class {label}",
                # A picture within the figure: a hundred thousand circles would make a large file.
                rasterized=True,
                zorder=1 if is_unknown else 2,
            )
        axes.set_xlabel(f"component 1, {parts[0]:.0%} of the variance")
        axes.set_ylabel(f"component 2, {parts[1]:.0%} of the variance")
        axes.set_title("Embeddings")
        if named and labels is not None:
            axes.legend(frameon=False, markerscale=3, fontsize=_FONT_POINTS - 2)
        save_plot(figure, path)


def plot_confusion(counts: Array, split: str, path: Path) -> None:
    """Plot a confusion matrix, each row in parts of its class.

    Parameters
    ----------
    counts
        [C, C], of label i taken for j.
    split
        Which vertices they are, for the title.
    path
        The file; its ending chooses the format.

    Raises
    ------
    DataNotWritten
        If it cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    parts = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    with rc_context({"font.size": _FONT_POINTS}):
        figure = Figure(figsize=(_WIDTH, _WIDTH), layout="constrained", dpi=200)
        axes = figure.subplots()
        picture = axes.imshow(parts, cmap="Blues", vmin=0, vmax=1)
        if len(counts) <= _MOST_NUMBERS:
            axes.set_xticks(range(len(counts)))
            axes.set_yticks(range(len(counts)))
            for (label, taken), part in np.ndenumerate(parts):
                colour = "white" if part > 0.5 else "black"
                number = f"{counts[label, taken]:,}"
                axes.text(taken, label, number, ha="center", va="center", color=colour, fontsize=6)
        axes.set_xlabel("predicted class")
        axes.set_ylabel("class")
        hits = int(np.trace(counts))
        axes.set_title(f"{split}: {hits:,} of {int(counts.sum()):,} right", fontsize=_FONT_POINTS)
        figure.colorbar(picture, label="part of the class", shrink=0.8)
        save_plot(figure, path)
