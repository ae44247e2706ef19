"""Plots for papers: output files, scaling of predictions, and charts of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hyrt_perfmodel.prediction.predict import Prediction

from hyrt.errors import ConfigError, DataWriteError, join_names
from hyrt.report.html.chart import Chart
from hyrt.runtime.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# matplotlib has more formats, but some reject metadata, require TeX or are not images.
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
            f"{option} {path}: unknown file type: give a name that ends in {join_names(_KINDS, 'or')}"
        )


def save_plot(figure: Figure, path: Path) -> None:
    """Write a figure atomically; raise DataWriteError if that fails."""
    from matplotlib import rc_context

    try:
        with (
            # Keep text as text for papers and searches: as such in SVG, as TrueType in PDF.
            rc_context({"svg.fonttype": "none", "pdf.fonttype": 42, "svg.hashsalt": "hyrt"}),
            atomic_file(path) as file,
        ):
            figure.savefig(file, format=path.suffix[1:].lower(), metadata=_no_date(path))
    except OSError as error:
        raise DataWriteError(
            f"{path} cannot be written: {error.strerror or error}. Free space, or give another file"
        ) from error


def _no_date(path: Path) -> dict[str, None]:
    """Return metadata without the date, so that equal plots are equal files."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})


def plot_scaling(scaling: Sequence[tuple[int, Prediction]], path: Path) -> None:
    """Plot speed-ups relative to the first row, linear speed-up, and each row's bottleneck.

    `scaling` has at least two (number of accelerators, prediction). Raises DataWriteError if the file cannot
    be written.
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


# Column width of most papers, and a height with room for eight ticks; in inches.
_WIDTH, _HEIGHT = 3.4, 2.3
_FONT_POINTS = 8
_DEFAULT_KEYS = ("loss", "metrics")


def select_charts(charts: Sequence[Chart], keys: Sequence[str] | None) -> list[Chart]:
    """Select charts by key (None: loss and metrics), in order of the keys; charts may share a key.

    Raises ConfigError with the available keys if a key or any chart is missing.
    """
    available = list(dict.fromkeys(chart.key for chart in charts))
    if not available:
        raise ConfigError("no step is recorded yet: there is nothing to plot: train the run first")
    for key in keys or ():
        if key not in available:
            raise ConfigError(
                f"--charts {key}: there is no such chart here: give {join_names(available, 'or')}"
            )
    selected = [key for key in _DEFAULT_KEYS if key in available] or available[:1] if keys is None else keys
    return [chart for key in selected for chart in charts if chart.key == key]


def plot_charts(charts: Sequence[Chart], path: Path) -> None:
    """Plot charts with all their points below each other, each as wide as a column of a paper.

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
