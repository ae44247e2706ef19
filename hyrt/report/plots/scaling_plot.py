"""A plot of the scaling table: speed-up over the number of accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hyrt_perfmodel.prediction.predict import Prediction

from hyrt.report.plots.plot_file import save_plot


def plot_scaling(scaling: Sequence[tuple[int, Prediction]], path: Path) -> None:
    """Plot speed-ups over the first row, what linear ones would be, and each row's bottleneck.

    Parameters
    ----------
    scaling
        Numbers of accelerators and their predictions; at least two.
    path
        The file of the plot; its ending chooses the format.

    Raises
    ------
    DataNotWritten
        If it cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    counts = [count for count, _ in scaling]
    speedups = [scaling[0][1].epoch_s / each.epoch_s for _, each in scaling]
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(counts, speedups, color="0.6", zorder=1)
    for stage in dict.fromkeys(each.bottleneck for _, each in scaling):
        bound = [i for i, (_, each) in enumerate(scaling) if each.bottleneck == stage]
        axes.scatter(
            [counts[i] for i in bound], [speedups[i] for i in bound], label=f"bound by {stage}", zorder=2
        )
    if counts[0]:
        axes.plot(counts, [count / counts[0] for count in counts], "k:", linewidth=1, label="linear")
    axes.set_ylim(0, 1.5 * max(speedups))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("accelerators")
    axes.set_ylabel(f"speed-up over {counts[0]}")
    # As it is: a `$` of a name starts no formula.
    axes.set_title(f"{scaling[0][1].platform}, predicted", parse_math=False)
    axes.legend()
    save_plot(figure, path)
