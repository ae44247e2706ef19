"""Plot of the scaling table: speed-up over the number of accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hyrt_perfmodel.prediction.predict import Prediction

from hyrt.report.plots.plot_file import save_plot


def plot_scaling(scaling: Sequence[tuple[int, Prediction]], path: Path) -> None:
    """Plot speed-ups relative to the first row, linear speed-up, and each row's bottleneck.

    Parameters
    ----------
    scaling
        Numbers of accelerators and their predictions; at least two.
    path
        Output file; its suffix determines the format.

    Raises
    ------
    DataNotWritten
        If the file cannot be written.
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
