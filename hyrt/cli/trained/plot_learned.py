"""Plots of `hyrt plot` that apply the weights of a run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, cast

import typer

Learned = Literal["embeddings", "confusion", "roc"]


def plot_learned(run: Path, what: Learned, file: Path, *, by_umap: bool = False) -> str:
    """Plot embeddings of all vertices, a confusion matrix, or ROC curves; return a description of the plot.

    With `by_umap`, UMAP lays out the embeddings; otherwise their two principal components are plotted.
    Confusion matrices and ROC curves use the test vertices, or the validation vertices if there are no test
    vertices.

    Raises
    ------
    ConfigError
        If the run has no embeddings or classes, or no class or label with both positive and negative
        vertices.
    """
    from hyrt.machine.this_process.process_settings import prepare_process

    prepare_process()
    import numpy as np

    from hyrt.errors import ConfigError
    from hyrt.inference.write_rows import chosen_vertices, write_rows
    from hyrt.nn.links.link_gnn import LinkGNN
    from hyrt.nn.model import GNN
    from hyrt.objective.metrics import confusion_matrix
    from hyrt.report.plots import planes
    from hyrt.report.plots.learned_plot import plot_confusion, plot_embeddings
    from hyrt.report.plots.roc_plot import plot_roc, roc_curves
    from hyrt.report.records.trained_run import open_trained
    from hyrt.training.setup import assign_threads, evaluation_workers

    trained = open_trained(run, [], "best", lambda text: typer.echo(f"warning: {text}", err=True))
    graph, config, model = trained.graph, trained.config, cast(GNN, trained.model)
    uses_split, labelled = what != "embeddings", graph.vertices.label_kind
    if what == "confusion" and (labelled != "classes" or graph.links is not None):
        raise ConfigError(
            "--confusion: a confusion matrix needs classes, and this run does not predict classes: omit it"
        )
    if what == "roc" and (labelled == "numbers" or graph.links is not None):
        raise ConfigError(
            "--roc: a ROC curve needs classes or labels of 0 and 1, and this run predicts neither: omit it"
        )
    splits = [name for name in ("test", "val") if len(graph.split(name, config.data.split))]
    if uses_split and not splits:
        raise ConfigError(
            f"--{what}: the dataset has neither test nor validation vertices: add masks of them"
        )
    split = splits[0] if uses_split else "all"
    vertices = chosen_vertices(graph, split, config.data.split)
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
    if what == "embeddings":
        labels = graph.labels[vertices] if labelled == "classes" else None
        plane = planes.by_umap(rows, config.seed) if by_umap else planes.by_principal_components(rows)
        plot_embeddings(plane, labels, file)
        return f"embeddings of {len(rows):,} vertices"
    labels, name = graph.vertices.labels_of(vertices), {"test": "test", "val": "validation"}[split]
    if what == "confusion":
        plot_confusion(confusion_matrix(rows, labels), name, file)
        return f"classes of {len(rows):,} vertices"
    curves = roc_curves(rows, labels)
    if not curves:
        raise ConfigError(f"--roc: no class or label is one that only some {name} vertices have: omit it")
    plot_roc(curves, name, file)
    return f"ROC curves of {len(rows):,} vertices"
