"""What a run has learned, as figures for papers: embeddings on a plane, and classes taken for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.report.plots.planes import Plane
from hyrt.report.plots.plot_file import save_plot

Array = NDArray[Any]

# Inches: a column of most papers.
_WIDTH = 3.4
_FONT_POINTS = 8
# More colours are not told apart, and more numbers cannot be read.
_MOST_NAMED, _MOST_NUMBERS = 20, 12


def plot_embeddings(plane: Plane, labels: Array | None, path: Path) -> None:
    """Plot rows on a plane, in the colours of their classes.

    Parameters
    ----------
    plane
        Where the n rows are.
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

    places = plane.places
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
        axes.set_xlabel(plane.axes[0])
        axes.set_ylabel(plane.axes[1])
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
