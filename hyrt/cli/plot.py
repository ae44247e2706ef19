"""`hyrt plot`: charts of runs as figures for papers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from hyrt.cli.options import Force

if TYPE_CHECKING:
    from hyrt.report.html.chart import Chart
    from hyrt.report.run_record import RunRecord


ModelPlot = Literal["embeddings", "confusion", "roc"]


def plot_model(run: Path, kind_of_plot: ModelPlot, file: Path, *, use_umap: bool = False) -> str:
    """Plot embeddings of all vertices, a confusion matrix, or ROC curves; return a description of the plot.

    With `project_umap`, UMAP lays out the embeddings; otherwise their two principal components are plotted.
    Confusion matrices and ROC curves use the test vertices, or the validation vertices if there are no test
    vertices.

    Raises
    ------
    ConfigError
        If the run has no embeddings or classes, or no class or label with both positive and negative
        vertices.
    """
    from hyrt.runtime.process_setup import prepare_process

    prepare_process()
    import numpy as np

    from hyrt.errors import ConfigError
    from hyrt.inference.output_rows import select_vertices, write_rows
    from hyrt.nn.link_gnn import LinkGNN
    from hyrt.nn.model import GNN
    from hyrt.objective.metrics import confusion_matrix
    from hyrt.report.plots import (
        plot_confusion,
        plot_embeddings,
        plot_roc,
        project_pca,
        project_umap,
        roc_curves,
    )
    from hyrt.report.trained_run import open_trained_run
    from hyrt.training.setup import assign_threads, evaluation_workers

    trained = open_trained_run(run, [], "best", lambda text: typer.echo(f"warning: {text}", err=True))
    graph, config, model = trained.graph, trained.config, cast(GNN, trained.model)
    uses_split, labelled = kind_of_plot != "embeddings", graph.vertices.label_kind
    if kind_of_plot == "confusion" and (labelled != "classes" or graph.links is not None):
        raise ConfigError(
            "--confusion needs a run that predicts classes, but this run does not: remove --confusion"
        )
    if kind_of_plot == "roc" and (labelled == "numbers" or graph.links is not None):
        raise ConfigError(
            "--roc needs a run that predicts classes or labels of 0 and 1, but this run does "
            "not: remove --roc"
        )
    splits = [name for name in ("test", "val") if len(graph.split(name, config.data.split))]
    if uses_split and not splits:
        raise ConfigError(
            f"--{kind_of_plot} needs test or validation vertices, but the dataset has none: "
            "add test_mask or val_mask"
        )
    split = splits[0] if uses_split else "all"
    vertices = select_vertices(graph, split, config.data.split)
    needs_scores = graph.links is not None or uses_split
    model = model.embedding_model() if isinstance(model, LinkGNN) else model
    with (
        closing(evaluation_workers(assign_threads(config))) as workers,
        TemporaryDirectory(dir=trained.scratch) as folder,
    ):
        rows_file = Path(folder) / "rows.npy"
        kind: Literal["scores", "embeddings"] = "scores" if needs_scores else "embeddings"
        memory_bytes = int(config.evaluate.memory_gib * 2**30)
        write_rows(rows_file, model, graph, vertices, kind, workers, memory_bytes=memory_bytes)
        rows = np.load(rows_file)
    if kind_of_plot == "embeddings":
        labels = graph.labels[vertices] if labelled == "classes" else None
        plane = project_umap(rows, config.seed) if use_umap else project_pca(rows)
        plot_embeddings(plane, labels, file)
        return f"embeddings of {len(rows):,} vertices"
    labels, name = graph.vertices.select_labels(vertices), {"test": "test", "val": "validation"}[split]
    if kind_of_plot == "confusion":
        plot_confusion(confusion_matrix(rows, labels), name, file)
        return f"classes of {len(rows):,} vertices"
    curves = roc_curves(rows, labels)
    if not curves:
        raise ConfigError(
            f"--roc needs a class or label that some {name} vertices have and others do not, "
            "but there is none: remove --roc"
        )
    plot_roc(curves, name, file)
    return f"ROC curves of {len(rows):,} vertices"


class LayoutMethod(StrEnum):
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
            help="Plot the vertex embeddings of one run in two dimensions, coloured by class.",
        ),
    ] = False,
    method: Annotated[
        LayoutMethod | None,
        typer.Option(
            help="How --embeddings projects to two dimensions: pca, the default, uses the first "
            "two principal components; umap places similar vertices close together, and "
            'needs pip install "hyrt[umap]".',
        ),
    ] = None,
    confusion: Annotated[
        bool,
        typer.Option(
            "--confusion",
            help="Plot the confusion matrix of one run: the predicted classes for the test "
            "vertices of each class.",
        ),
    ] = False,
    roc: Annotated[
        bool,
        typer.Option(
            "--roc",
            help="Plot the ROC curves of one run on the test vertices, one per class or label, "
            "with the area under each curve.",
        ),
    ] = False,
    force: Force = False,
) -> None:
    """Plot charts of a run, or compare several runs in each chart.

    The charts are the same as in the report, with the width of a paper column. In SVG and PDF files, text
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
    from hyrt.report.html.page import unique_names
    from hyrt.report.html.run_charts import comparison_charts, run_charts
    from hyrt.report.plots import check_plot, check_umap, plot_charts, select_charts
    from hyrt.report.printed_lines import quote_path
    from hyrt.report.run_record import diagnose_damage, read_run
    from hyrt.runtime.files import resolve_output_file

    check_plot(output, "--output")
    learned: dict[ModelPlot, bool] = {"embeddings": embeddings, "confusion": confusion, "roc": roc}
    model_plots = [name for name, is_set in learned.items() if is_set]
    exclusive = [*(["charts"] if charts else []), *model_plots]
    if len(exclusive) > 1:
        raise ConfigError(
            f"--{exclusive[0]} cannot be combined with --{exclusive[1]}: plot them to separate files"
        )
    if model_plots and len(runs) > 1:
        raise ConfigError(f"--{exclusive[0]} plots a single run: specify only one")
    if method and not embeddings:
        raise ConfigError("--method has no effect without --embeddings: add --embeddings")
    if method == LayoutMethod.umap:
        check_umap()
    file = resolve_output_file(output, replace=force)
    if model_plots:
        description = plot_model(runs[0], model_plots[0], file, use_umap=method == LayoutMethod.umap)
        typer.echo(f"plot {quote_path(output)}: {description}")
        return
    # Remove duplicates: a folder that is given twice is one run.
    records = [read_run(path) for path in {path.resolve(): path for path in runs}.values()]

    def build_charts(runs: Sequence[RunRecord]) -> list[Chart]:
        return run_charts(runs[0]) if len(runs) == 1 else comparison_charts(runs, unique_names(runs))

    keys = None if charts is None else [name.strip() for name in charts.split(",")]
    plot_charts(select_charts(diagnose_damage(records, build_charts), keys), file)
    typer.echo(f"plot {quote_path(output)}")
