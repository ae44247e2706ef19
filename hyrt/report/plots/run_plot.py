"""Plots of a run's charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from hyrt.errors import ConfigError, listed
from hyrt.report.html.chart import Chart
from hyrt.report.plots.plot_file import save_plot

# In inches: a column of most papers, and a height at which eight ticks are readable.
_WIDTH, _HEIGHT = 3.4, 2.3
_FONT_POINTS = 8
_DEFAULT_KEYS = ("loss", "metrics")


def chosen_charts(charts: Sequence[Chart], keys: Sequence[str] | None) -> list[Chart]:
    """Select charts by key, in the order of the keys; several charts may have the same key.

    Parameters
    ----------
    charts
        All available charts.
    keys
        Keys of the charts; None for loss and metrics, if available.

    Raises
    ------
    ConfigError
        If there is no chart with a key (names the available keys), or no chart at all.
    """
    available = list(dict.fromkeys(chart.key for chart in charts))
    if not available:
        raise ConfigError("no step is recorded yet: there is nothing to plot: train the run first")
    for key in keys or ():
        if key not in available:
            raise ConfigError(f"--charts {key}: there is no such chart here: give {listed(available, 'or')}")
    selected = [key for key in _DEFAULT_KEYS if key in available] or available[:1] if keys is None else keys
    return [chart for key in selected for chart in charts if chart.key == key]


def plot_charts(charts: Sequence[Chart], path: Path) -> None:
    """Plot charts below each other, each as wide as a column of a paper.

    Parameters
    ----------
    charts
        At least one chart, with all its points.
    path
        Output file; its suffix determines the format.

    Raises
    ------
    DataNotWritten
        If the file cannot be written.
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
