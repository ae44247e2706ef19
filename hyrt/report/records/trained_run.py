"""A trained model and its graph, from the folder of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hyrt.config import Config, build_config
from hyrt.config.build import changed_config
from hyrt.config.yaml_text import settings_of
from hyrt.errors import CheckpointError, ConfigError
from hyrt.graph.graph import Graph
from hyrt.nn.saga.checks.edge_values import check_edge_values
from hyrt.nn.saga.checks.typed_graphs import check_types
from hyrt.quantities import counted
from hyrt.report.records.run_folder import RunFolder
from hyrt.training.checkpoint import has_checkpoint, load_checkpoint, load_newest_checkpoint
from hyrt.training.given.link_graph import LINKS, link_graph
from hyrt.training.given.opened_graph import opened_graph
from hyrt.training.setup import build_model


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """What a run has learned."""

    model: torch.nn.Module
    """In evaluation mode, with the weights that were asked for."""
    config: Config
    """The run's settings."""
    metrics: Mapping[str, Mapping[str, float]]
    """Of the best evaluation, by split; empty before the first."""
    graph: Graph
    """The dataset of the run."""
    weights: str
    """Where the weights come from, in words."""
    scratch: Path | None
    """Folder for temporary files: the run's, or None where that cannot be written."""


def open_trained(
    run: Path,
    overrides: list[str],
    checkpoint: str,
    warn: Callable[[str], None] = lambda text: None,
    *,
    graph: Any = None,
    module: torch.nn.Module | None = None,
) -> TrainedRun:
    """Open a run's graph and build its model.

    Parameters
    ----------
    run
        Folder of the run, or of the checkpoints of a training from Python.
    overrides
        Settings that differ from the run's, `key.path=value`.
    checkpoint
        `best`: the weights of the best evaluation (the newest where there was none); `newest`; or a file.
    warn
        Told which damaged checkpoints were passed over, and that the dataset has changed.
    graph
        In place of the dataset of the settings: a graph, or what `hyrt.load` takes.
    module
        In place of the model of the settings; takes the weights.

    Raises
    ------
    CheckpointError
        If there are no such weights, or they do not fit the graph's features and classes.
    ConfigError
        If the folder has no settings that tell its dataset, and no graph is given.
    DataError, UnsupportedModel
        If graph and model do not agree on types of edges.
    """
    checkpoints = run / "checkpoints"
    # `hyrt.train` writes checkpoints alone, with the settings but the data.
    alone = not (run / "config.yaml").is_file() and checkpoints.is_dir() and has_checkpoint(checkpoints)
    if alone and graph is None and not any(entry.startswith("data.source=") for entry in overrides):
        # What `hyrt run` makes has more than checkpoints, and its settings have gone.
        why = "was trained from Python and does not name its dataset: give it"
        if RunFolder(run).metrics_path.exists() or (run / "summary.json").exists():
            why = "has no config.yaml any more, which named its dataset: put it back, or give the dataset"
        raise ConfigError(f"{run} {why} (--data, or graph= in Python)")
    folder = None if alone else RunFolder.open(run)
    if checkpoint in ("best", "newest"):
        found = load_newest_checkpoint(checkpoints, warn)
    else:
        found = load_checkpoint(Path(checkpoint))
    if folder is None:
        settings = build_config(settings_of(found.state["config"], str(found.path)), lenient=True)
    else:
        settings = folder.config()
    config = changed_config(settings, overrides, own_model=module is not None)
    best = found.state["best"]
    if checkpoint == "best" and best["weights"] is not None:
        weights, words = best["weights"], f"best validation, epoch {best['epoch']}"
    else:
        weights, words = found.state["model"], f"step {found.step}"
    # Its own dataset, with the settings that it was trained with.
    is_same = graph is None and not any(entry.startswith("data.") for entry in overrides)
    if not isinstance(graph, Graph):
        # One that is not open yet is scaled as the settings say.
        source = config.data.source if graph is None else graph
        # The run's own split is one of the run's own dataset.
        is_own = graph is None and not any(entry.startswith("data.source=") for entry in overrides)
        named = RunFolder(run).dataset_named(config) if graph is None else nullcontext()
        with named:
            graph = opened_graph(config, source, run / LINKS if is_own else None)
    elif config.train.predicts_links:
        graph = link_graph(config, graph, run / LINKS)
    if is_same and found.state.get("graph", graph.checksum) != graph.checksum:
        warn(
            f"{graph.name} has changed since {run} was trained on it: other labels or splits. What follows "
            "is of the dataset as it is now; give the former one as --data (graph= in Python)"
        )
    model = build_model(config, graph) if module is None else module
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise CheckpointError(
            f"{found.path}: the weights do not fit "
            + (
                f"{graph.name} with {counted(graph.num_features, 'feature')} and "
                f"{graph.vertices.labels_in_words}: give the dataset of the run, or one with "
                "the same widths, and, where a module of your own was trained, that too (model= in Python)"
                if module is None
                else f"{type(module).__name__}: give a module with the parameters of the one that was trained"
            )
        ) from None
    check_types(model, graph)
    check_edge_values(model, graph, drawn_by=config.sampler.reads_edge_weights)
    return TrainedRun(
        model=model.eval(),
        config=config,
        metrics=best["metrics"],
        graph=graph,
        weights=words,
        scratch=run if os.access(run, os.W_OK | os.X_OK) else None,
    )
