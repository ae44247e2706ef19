"""The part of `hyrt plot` that applies the weights of a run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, cast

import typer


def plot_learned(run: Path, what: Literal["embeddings", "confusion"], file: Path) -> str:
    """Plot embeddings of all vertices, or which classes are taken for which; says what was plotted.

    Confusions are those of the test vertices, or of the validation vertices where there are none.

    Raises
    ------
    ConfigError
        If the run has no embeddings or no classes.
    """
    from hyrt.machine.this_process.process_settings import prepare_process

    prepare_process()
    import numpy as np

    from hyrt.errors import ConfigError
    from hyrt.inference.write_rows import chosen_vertices, write_rows
    from hyrt.nn.links.link_gnn import LinkGNN
    from hyrt.nn.model import GNN
    from hyrt.report.plots.learned_plot import confusion_matrix, plot_confusion, plot_embeddings
    from hyrt.report.records.trained_run import open_trained
    from hyrt.training.setup import assign_threads, evaluation_workers

    trained = open_trained(run, [], "best", lambda text: typer.echo(f"warning: {text}", err=True))
    graph, config, model = trained.graph, trained.config, cast(GNN, trained.model)
    has_classes = graph.vertices.label_kind == "classes"
    if what == "confusion" and (not has_classes or graph.links is not None):
        raise ConfigError("--confusion: the run does not predict classes, so none are taken for others")
    splits = [name for name in ("test", "val") if len(graph.split(name, config.data.split))]
    if what == "confusion" and not splits:
        raise ConfigError("--confusion: the dataset has neither test nor validation vertices")
    split = splits[0] if what == "confusion" else "all"
    vertices = chosen_vertices(graph, split, config.data.split)
    whole = graph.links is not None or what == "confusion"
    model = model.embedding_model() if isinstance(model, LinkGNN) else model
    with (
        closing(evaluation_workers(assign_threads(config))) as workers,
        TemporaryDirectory(dir=trained.scratch) as folder,
    ):
        rows_file = Path(folder) / "rows.npy"
        kind: Literal["scores", "embeddings"] = "scores" if whole else "embeddings"
        memory_bytes = int(config.evaluate.memory_gib * 2**30)
        write_rows(rows_file, model, graph, vertices, kind, workers, memory_bytes=memory_bytes)
        rows = np.load(rows_file)
    labels = graph.labels[vertices] if has_classes else None
    if what == "embeddings" or labels is None:
        plot_embeddings(rows, labels, file)
        return f"embeddings of {len(rows):,} vertices"
    plot_confusion(confusion_matrix(rows, labels), {"test": "test", "val": "validation"}[split], file)
    return f"classes of {len(rows):,} vertices"
