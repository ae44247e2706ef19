"""A trained model and its graph, from the folder of a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hyrt.config import Config, apply_overrides, build_config
from hyrt.errors import CheckpointError
from hyrt.graph import open_graph
from hyrt.graph.graph import Graph
from hyrt.nn.model import GNN
from hyrt.report.records.run_folder import RunFolder
from hyrt.training.checkpoint import load_checkpoint, load_newest_checkpoint
from hyrt.training.setup import build_model


@dataclass(frozen=True, slots=True)
class Trained:
    """What a run has learned."""

    config: Config
    graph: Graph
    model: GNN
    weights: str
    """The origin of its weights, in words."""
    scratch: Path | None
    """Folder for temporary files: the run's, or None where that cannot be written."""


def open_trained(
    run: Path, overrides: list[str], checkpoint: str, warn: Callable[[str], None] = lambda text: None
) -> Trained:
    """Open a run's graph and build its model.

    Parameters
    ----------
    run
        Folder of the run.
    overrides
        Settings that differ from the run's, `key.path=value`.
    checkpoint
        `best`: the weights of the best evaluation (the newest where there was none); `newest`; or a file.
    warn
        Told which damaged checkpoints were passed over.

    Raises
    ------
    CheckpointError
        If there are no such weights, or they do not fit the graph's features and classes.
    """
    folder = RunFolder.open(run)
    config = build_config(apply_overrides(folder.config().model_dump(), overrides))
    if checkpoint in ("best", "newest"):
        found = load_newest_checkpoint(folder.checkpoints, warn)
    else:
        found = load_checkpoint(Path(checkpoint))
    best = found.state["best"]
    if checkpoint == "best" and best["weights"] is not None:
        weights, words = best["weights"], f"best validation, epoch {best['epoch']}"
    else:
        weights, words = found.state["model"], f"step {found.step}"
    graph = open_graph(config.data.source, normalize=config.data.normalize)
    model = build_model(config, graph)
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise CheckpointError(
            f"{found.path}: the weights do not fit {graph.name} with {graph.num_features} features and "
            f"{graph.num_classes} classes: give the dataset of the run, or one with the same widths"
        ) from None
    scratch = folder.path if os.access(folder.path, os.W_OK | os.X_OK) else None
    return Trained(config, graph, model.eval(), words, scratch)
