"""Plots as image files: charts of runs, predictions, embeddings, confusion matrices and ROC curves."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hyrt_perfmodel.prediction.predict import Prediction
from numpy.typing import NDArray

from hyrt.errors import ConfigError, DataWriteError, join_names
from hyrt.formatting import short_repr
from hyrt.report.html.chart import Chart
from hyrt.runtime.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]

# Width of a column in most papers, and a height with space for eight ticks, in inches.
_WIDTH, _HEIGHT = 3.4, 2.3
_FONT_POINTS = 8

# Supported suffixes. matplotlib has more formats, but some reject metadata, require TeX or are not images.
_KINDS = (".png", ".svg", ".pdf", ".eps")


def check_plot(path: Path, option: str = "--plot") -> None:
    """Raise ConfigError if matplotlib is missing or the suffix is not supported, before anything is computed.

    `option` is the option that names the file.
    """
    try:
        import matplotlib.backends.backend_agg  # noqa: F401
    except ImportError:
        raise ConfigError(f'{option} needs matplotlib: pip install "hyrt[plot]"') from None
    if path.suffix.lower() not in _KINDS:
        raise ConfigError(
            f"{option} {path} has an unknown file type: use a name that ends in {join_names(_KINDS, 'or')}"
        )


def save_plot(figure: Figure, path: Path) -> None:
    """Write a figure atomically; raise DataWriteError if that fails."""
    from matplotlib import rc_context

    try:
        with (
            # Save text as text (as TrueType in PDF), so that papers can embed it and searches find it.
            rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "hyrt"}),
            atomic_file(path) as file,
        ):
            figure.savefig(file, format=path.suffix[1:].lower(), metadata=_no_date(path))
    except OSError as error:
        raise DataWriteError(
            f"{path} cannot be written: {error.strerror or error}. Free space, or choose another file"
        ) from error


def _no_date(path: Path) -> dict[str, None]:
    """Return metadata without the date, so that equal plots are equal files."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})


def plot_scaling(scaling: Sequence[tuple[int, Prediction]], path: Path) -> None:
    """Plot the speed-up relative to the first entry, the linear speed-up, and the bottleneck of each entry.

    `scaling` has at least two pairs (number of accelerators, prediction). Raises DataWriteError if the file
    cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    counts = [count for count, _ in scaling]
    speedups = [scaling[0][1].epoch_s / prediction.epoch_s for _, prediction in scaling]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(counts, speedups, color="0.6", zorder=1)
    for stage in dict.fromkeys(prediction.bottleneck for _, prediction in scaling):
        rows = [i for i, (_, prediction) in enumerate(scaling) if prediction.bottleneck == stage]
        axes.scatter(
            [counts[i] for i in rows], [speedups[i] for i in rows], label=f"bound by {stage}", zorder=2
        )
    if counts[0]:
        axes.plot(counts, [count / counts[0] for count in counts], "k:", linewidth=1, label="linear")
    axes.set_ylim(0, 1.5 * max(speedups))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("accelerators")
    axes.set_ylabel(f"speed-up over {counts[0]}")
    # A `$` in a name must not start a formula.
    axes.set_title(f"{scaling[0][1].platform}, predicted", parse_math=False)
    axes.legend()
    save_plot(figure, path)


# Keys of the charts that `hyrt plot` draws by default.
_DEFAULT_KEYS = ("loss", "metrics")


def select_charts(charts: Sequence[Chart], keys: Sequence[str] | None) -> list[Chart]:
    """Select charts by key (None: loss and metrics), in order of the keys; charts may share a key.

    Raises ConfigError with the available keys if a key or any chart is missing.
    """
    available = list(dict.fromkeys(chart.key for chart in charts))
    if not available:
        raise ConfigError("there is nothing to plot, because no steps have been recorded yet: train first")
    for key in keys or ():
        if key not in available:
            raise ConfigError(
                f"--charts {key} is not available for these runs: use {join_names(available, 'or')}"
            )
    selected = [key for key in _DEFAULT_KEYS if key in available] or available[:1] if keys is None else keys
    return [chart for key in selected for chart in charts if chart.key == key]


def plot_charts(charts: Sequence[Chart], path: Path) -> None:
    """Plot charts below each other, with all points, each as wide as a column of a paper.

    Raises DataWriteError if the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    with rc_context({"font.size": _FONT_POINTS}):
        figure = Figure(figsize=(_WIDTH, _HEIGHT * len(charts)), layout="constrained")
        for axes, chart in zip(figure.subplots(len(charts), squeeze=False)[:, 0], charts, strict=True):
            for series in chart.series:
                axes.plot(
                    series.x,
                    series.y,
                    color=f"C{series.colour}",
                    linestyle="--" if series.dashed else "-",
                    drawstyle="steps-post" if chart.step else "default",
                    marker="." if len(series.x) == 1 else None,
                    linewidth=1,
                    label=series.name,
                )
            if math.isfinite(chart.top):
                axes.set_ylim(top=chart.top)
            # A `$` in a name must not start a formula.
            axes.set_title(chart.title, fontsize=_FONT_POINTS, parse_math=False)
            axes.set_xlabel(chart.x_name)
            value = chart.value
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _, value=value: value(y)))
            axes.grid(visible=True, linewidth=0.3)
            for text in axes.legend(frameon=False).get_texts():
                text.set_parse_math(False)
        save_plot(figure, path)


# Default of UMAP for the number of neighbours per row.
_NUM_NEIGHBOURS = 15


@dataclass(frozen=True, slots=True)
class Projection2D:
    """Two-dimensional projection of rows."""

    positions: NDArray[np.float64]
    """Positions, [n, 2]."""
    axes: tuple[str, str]
    """Descriptions of the two axes."""

    __repr__ = short_repr


def principal_components(rows: Array) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Project rows [n, width] on their first two principal components (Pearson, 1901).

    Returns positions [n, 2] float64, and the fraction of the variance of each component. The sign of a
    component is chosen so that its largest weight is positive. If `width` is 1, the second axis is zero.
    """
    centred = rows.astype(np.float64) - rows.mean(0, dtype=np.float64)
    variances, axes = np.linalg.eigh(centred.T @ centred)
    first = axes[:, ::-1][:, :2]
    first = first * np.sign(first[np.abs(first).argmax(0), np.arange(first.shape[1])])
    positions = np.zeros((len(rows), 2))
    positions[:, : first.shape[1]] = centred @ first
    total = variances.sum()
    variance_fractions = [*(variances[::-1] / total if total > 0 else np.zeros_like(variances)), 0.0]
    return positions, (float(variance_fractions[0]), float(variance_fractions[1]))


def project_pca(rows: Array) -> Projection2D:
    """Project rows [n, width] on their principal components, and describe the axes."""
    positions, parts = principal_components(rows)
    first, second = (f"component {axis}, {part:.0%} of variance" for axis, part in enumerate(parts, 1))
    return Projection2D(positions, (first, second))


def check_umap() -> None:
    """Raise ConfigError if UMAP is not installed, before anything is computed."""
    # Look for the distribution: another package has the same module name, and importing UMAP takes seconds.
    try:
        distribution("umap-learn")
    except PackageNotFoundError:
        raise ConfigError('--method umap needs umap-learn: pip install "hyrt[umap]"') from None


def project_umap(rows: Array, seed: int) -> Projection2D:
    """Project rows [n, width] with UMAP, which preserves neighbourhoods (McInnes, Healy and Melville, 2018).

    Equal seeds give equal positions. Raises ConfigError unless n exceeds the 15 neighbours per row.
    """
    if len(rows) <= _NUM_NEIGHBOURS:
        raise ConfigError(
            f"--method umap places each vertex by its {_NUM_NEIGHBOURS} nearest neighbours, but there are "
            f"only {len(rows)} vertices: use --method pca"
        )
    from umap import UMAP

    with warnings.catch_warnings():
        # Ignore the warnings of UMAP, which users cannot prevent.
        warnings.simplefilter("ignore")
        # With a seed, UMAP always uses one thread.
        positions = UMAP(n_neighbors=_NUM_NEIGHBOURS, random_state=seed % 2**32, n_jobs=1).fit_transform(rows)
    return Projection2D(np.asarray(positions, np.float64), ("UMAP 1", "UMAP 2"))


# Maximum number of distinguishable colours, and maximum number of classes for which numbers are legible.
_MAX_COLOURS, _MAX_NUMBERED_CLASSES = 20, 12


def plot_embeddings(projection: Projection2D, labels: Array | None, path: Path) -> None:
    """Plot a projection of n rows, coloured by class.

    `labels` [n] has -1 for unknown classes, or is None. The suffix of `path` selects the format. Raises
    DataWriteError if the file cannot be written.
    """
    from matplotlib import colormaps, rc_context
    from matplotlib.figure import Figure

    positions = projection.positions
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
                # As vectors, a hundred thousand circles would make a large file.
                rasterized=True,
                zorder=1 if is_unknown else 2,
            )
        axes.set_xlabel(projection.axes[0])
        axes.set_ylabel(projection.axes[1])
        axes.set_title("Embeddings")
        if has_legend and labels is not None:
            axes.legend(frameon=False, markerscale=3, fontsize=_FONT_POINTS - 2)
        save_plot(figure, path)


def plot_confusion(counts: Array, split: str, path: Path) -> None:
    """Plot a confusion matrix, normalized by row; the title names `split`.

    `counts[i, j]` is the number of vertices of class i that were predicted as class j. Raises DataWriteError
    if the file cannot be written.
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
        axes.set_title(f"{split}: {hits:,} of {int(counts.sum()):,} correct", fontsize=_FONT_POINTS)
        figure.colorbar(picture, label="fraction of the class", shrink=0.8)
        save_plot(figure, path)


# Maximum number of distinguishable curves, and maximum number of points that are visible on a curve.
_MAX_CURVES, _MAX_POINTS = 10, 1000


@dataclass(frozen=True, slots=True)
class RocCurve:
    """ROC curve of one class or label against all others."""

    name: str
    num_positive: int
    area: float
    """Area under the curve, 0 to 1."""
    false_positive_rates: NDArray[np.float64]
    true_positive_rates: NDArray[np.float64]
    """Rate of true positives at each threshold, [p], increasing from 0 to 1 like `false_positive_rates`."""

    __repr__ = short_repr


def roc_points(scores: Array, positive: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Compute false and true positive rates, from (0, 0), for the distinct scores in descending order.

    `scores` [n] must not contain NaN, and `positive` [n] must have true and false entries.
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
    """Compute one ROC curve for two classes, one per class for more classes, or one per binary label.

    `scores` are [n, C]; `labels` are [n] classes or [n, K] of 0 and 1, with -1 for unknown. A class or label
    without positive or without negative rows has no curve.
    """
    from hyrt.objective.metrics import log_odds, roc_auc  # Not at the top: imports torch.

    if labels.ndim == 2:
        columns = [(f"label {index}", scores[:, index], labels[:, index]) for index in range(labels.shape[1])]
    elif scores.shape[1] == 2:
        # Use the same margin as the metric roc_auc.
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
    """Plot ROC curves; if there are many, only the curves with the most positive rows.

    `curves` must not be empty. Raises DataWriteError if the file cannot be written.
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
                curve.false_positive_rates[points],
                curve.true_positive_rates[points],
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
            title += f"\nshowing the {len(shown)} with most {split} vertices"
        axes.set_title(title, fontsize=_FONT_POINTS)
        axes.legend(frameon=False, fontsize=_FONT_POINTS - 2, loc="lower right")
        save_plot(figure, path)


def _visible_points(curve: RocCurve) -> NDArray[np.int64]:
    """Select all points, or evenly spaced ones if more points would not be visible."""
    if len(curve.false_positive_rates) <= _MAX_POINTS:
        return np.arange(len(curve.false_positive_rates))
    indices = np.searchsorted(
        curve.false_positive_rates + curve.true_positive_rates, np.linspace(0, 2, _MAX_POINTS)
    )
    return np.unique(np.minimum(indices, len(curve.false_positive_rates) - 1))
