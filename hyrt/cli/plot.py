"""`hyrt plot`: charts of runs as figures for papers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyrt.cli.options import Force
from hyrt.cli.trained.plot_learned import Learned, plot_learned

if TYPE_CHECKING:
    from hyrt.report.html.chart import Chart
    from hyrt.report.records.run_record import RunRecord


class Method(StrEnum):
    """Layout method of `hyrt plot --embeddings`."""

    pca = "pca"
    umap = "umap"


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="The folders of one or more runs.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The file to write: .svg, .pdf or .png."),
    ],
    charts: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="The charts, one below the other: loss, metrics, step, throughput, memory; for a single "
            "run, also stages, split, threads, waiting, queues, busy, chunks. By default loss and "
            "metrics.",
        ),
    ] = None,
    embeddings: Annotated[
        bool,
        typer.Option(
            "--embeddings",
            help="Plot the embeddings of one run's vertices on a plane, coloured by class.",
        ),
    ] = False,
    method: Annotated[
        Method | None,
        typer.Option(
            help="How --embeddings finds the plane: pca, the default, takes the two principal components; "
            'umap keeps nearby vertices close together, and needs pip install "hyrt[umap]".',
        ),
    ] = None,
    confusion: Annotated[
        bool,
        typer.Option(
            "--confusion",
            help="Plot the confusion matrix of one run: which classes it predicts for the test vertices of "
            "each class.",
        ),
    ] = False,
    roc: Annotated[
        bool,
        typer.Option(
            "--roc",
            help="Plot the ROC curves of one run, with the area below each: how well its scores separate "
            "each class or label from the rest, on the test vertices.",
        ),
    ] = False,
    force: Force = False,
) -> None:
    """Plot charts of a run, or of several runs in one chart each.

    The charts are those of the report, in the width of a column of a paper. In SVG and PDF files, their text
    can be searched and edited. All points are drawn. With --embeddings, --confusion or --roc, the weights of
    the best evaluation are applied to the dataset of the run. Needs matplotlib: pip install "hyrt[plot]".

    \b
    Examples:
      hyrt plot runs/mine -o loss.pdf --charts loss
      hyrt plot runs/gcn runs/gat -o compared.svg --charts metrics,step
      hyrt plot runs/mine -o embeddings.pdf --embeddings
      hyrt plot runs/mine -o embeddings.pdf --embeddings --method umap
      hyrt plot runs/mine -o confusion.pdf --confusion
      hyrt plot runs/mine -o roc.pdf --roc
    """  # noqa: D301
    from hyrt.errors import ConfigError
    from hyrt.machine.output_file import output_file
    from hyrt.report.html.charts_of_run import charts_beside, charts_of
    from hyrt.report.html.page import labels
    from hyrt.report.plots.planes import check_umap
    from hyrt.report.plots.plot_file import check_plot
    from hyrt.report.plots.run_plot import chosen_charts, plot_charts
    from hyrt.report.records.damaged_records import told_of
    from hyrt.report.records.run_record import read_run
    from hyrt.report.terminal.printed_lines import shell_word

    check_plot(output, "--output")
    learned: dict[Learned, bool] = {"embeddings": embeddings, "confusion": confusion, "roc": roc}
    model_plots = [name for name, is_set in learned.items() if is_set]
    exclusive = [*(["charts"] if charts else []), *model_plots]
    if len(exclusive) > 1:
        raise ConfigError(f"--{exclusive[0]} and --{exclusive[1]} exclude each other: plot them to two files")
    if model_plots and len(runs) > 1:
        raise ConfigError(f"--{exclusive[0]} is a plot of one run: give one")
    if method and not embeddings:
        raise ConfigError("--method is how --embeddings finds a plane: add --embeddings")
    if method == Method.umap:
        check_umap()
    file = output_file(output, replace=force)
    if model_plots:
        description = plot_learned(runs[0], model_plots[0], file, by_umap=method == Method.umap)
        typer.echo(f"plot {shell_word(output)}: {description}")
        return
    # Deduplicate: the same folder twice is one run.
    records = [read_run(path) for path in {path.resolve(): path for path in runs}.values()]

    def build_charts(runs: Sequence[RunRecord]) -> list[Chart]:
        return charts_of(runs[0]) if len(runs) == 1 else charts_beside(runs, labels(runs))

    keys = None if charts is None else [name.strip() for name in charts.split(",")]
    plot_charts(chosen_charts(told_of(records, build_charts), keys), file)
    typer.echo(f"plot {shell_word(output)}")
