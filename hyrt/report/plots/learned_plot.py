"""Plots of embeddings and of confusion matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.report.plots.planes import Plane
from hyrt.report.plots.plot_file import save_plot

Array = NDArray[Any]

# In inches: a column of most papers.
_WIDTH = 3.4
_FONT_POINTS = 8
# More colours cannot be distinguished, and more numbers cannot be read.
_MAX_COLOURS, _MAX_NUMBERED_CLASSES = 20, 12


def plot_embeddings(plane: Plane, labels: Array | None, path: Path) -> None:
    """Plot a two-dimensional projection of rows, coloured by class.

    Parameters
    ----------
    plane
        Projection of the n rows.
    labels
        [n] classes, -1 if unknown; None without classes.
    path
        Output file; its suffix determines the format.

    Raises
    ------
    DataNotWritten
        If the file cannot be written.
    """
    from matplotlib import colormaps, rc_context
    from matplotlib.figure import Figure

    positions = plane.places
    classes = [None] if labels is None else np.unique(labels).tolist()
    has_legend = len(classes) <= _MAX_COLOURS
    colours = colormaps["tab10" if len(classes) <= 10 else "tab20"]
    with rc_context({"font.size": _FONT_POINTS}):
        figure = Figure(figsize=(_WIDTH, _WIDTH), layout="constrained", dpi=200)
        axes = figure.subplots()
        for number, label in enumerate(classes):
            rows = slice(None) if label is None or labels is None else labels == label
            is_unknown = label == -1
            axes.scatter(
                positions[rows, 0],
                positions[rows, 1],
                s=4,
                linewidths=0,
                color="0.8" if is_unknown else colours(number % colours.N),
                label="not known" if is_unknown else f"class {label}",
                # Rasterized: a hundred thousand vector circles would make a large file.
                rasterized=True,
                zorder=1 if is_unknown else 2,
            )
        axes.set_xlabel(plane.axes[0])
        axes.set_ylabel(plane.axes[1])
        axes.set_title("Embeddings")
        if has_legend and labels is not None:
            axes.legend(frameon=False, markerscale=3, fontsize=_FONT_POINTS - 2)
        save_plot(figure, path)


def plot_confusion(counts: Array, split: str, path: Path) -> None:
    """Plot a confusion matrix with rows normalized by class size.

    Parameters
    ----------
    counts
        [C, C] number of vertices of class i that were predicted as class j.
    split
        Name of the split, for the title.
    path
        Output file; its suffix determines the format.

    Raises
    ------
    DataNotWritten
        If the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    parts = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    with rc_context({"font.size": _FONT_POINTS}):
        figure = Figure(figsize=(_WIDTH, _WIDTH), layout="constrained", dpi=200)
        axes = figure.subplots()
        picture = axes.imshow(parts, cmap="Blues", vmin=0, vmax=1)
        if len(counts) <= _MAX_NUMBERED_CLASSES:
            axes.set_xticks(range(len(counts)))
            axes.set_yticks(range(len(counts)))
            for (label, predicted), part in np.ndenumerate(parts):
                colour = "white" if part > 0.5 else "black"
                number = f"{counts[label, predicted]:,}"
                axes.text(predicted, label, number, ha="center", va="center", color=colour, fontsize=6)
        axes.set_xlabel("predicted class")
        axes.set_ylabel("class")
        hits = int(np.trace(counts))
        axes.set_title(f"{split}: {hits:,} of {int(counts.sum()):,} right", fontsize=_FONT_POINTS)
        figure.colorbar(picture, label="part of the class", shrink=0.8)
        save_plot(figure, path)
