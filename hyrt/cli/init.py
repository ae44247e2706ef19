"""`hyrt init`: write a settings file for a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyrt.cli.options import (
    BatchSize,
    Data,
    Devices,
    Epochs,
    Force,
    FullGraph,
    Hidden,
    Layers,
    LearningRate,
    Model,
    Seed,
    Settings,
)

if TYPE_CHECKING:
    from hyrt.config import Config
    from hyrt.graph.graph import Graph

# Settings that users usually change first. The file has all other settings as comments.
_CHANGED_FIRST = (
    *("seed", "devices", "data.source", "data.batch_size", "sampler.kind", "sampler.fanout"),
    *("model.kind", "model.layers", "model.hidden", "model.dropout"),
    *("train.epochs", "train.lr", "train.weight_decay", "train.metric"),
)
# If a class has a larger share of the labels, even a trivial model has a high accuracy.
_MAX_CLASS_SHARE = 0.75


def init(
    arguments: Settings = None,
    data: Data = None,
    model: Model = None,
    devices: Devices = None,
    full_graph: FullGraph = False,
    epochs: Epochs = None,
    lr: LearningRate = None,
    hidden: Hidden = None,
    layers: Layers = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.yaml", help="The file to write.")
    ] = Path("hyrt.yaml"),
    force: Force = False,
) -> None:
    """Write a settings file for your data, which you can then edit.

    The file explains every setting. Frequently changed settings have values for this dataset and model;
    all others are comments with their defaults.

    \b
    Examples:
      hyrt init --data cora.npz --model gcn
      hyrt init --data papers/ --hidden 256 -o papers.yaml
      hyrt run hyrt.yaml
    """  # noqa: D301
    from hyrt.config.command_line import (
        full_graph_override,
        new_config,
        option_overrides,
        short_option_overrides,
        split_arguments,
    )
    from hyrt.config.commented_yaml import commented_yaml
    from hyrt.device.discovery import AUTO, read_name
    from hyrt.graph import open_graph
    from hyrt.report.printed_lines import quote_path
    from hyrt.runtime.files import resolve_output_file, write_atomically

    destination = resolve_output_file(output, replace=force, suffix=".yaml")
    short = short_option_overrides(epochs, lr, hidden, layers, batch_size, seed)
    file, overrides = split_arguments([*short, *(arguments or [])])
    overrides = [*option_overrides(data__source=data, model__kind=model, devices=devices), *overrides]
    if full_graph:
        overrides = [full_graph_override(overrides), *overrides]
    config = new_config(file, overrides)
    for request in config.device_requests:
        # Training may run on another machine, but only kinds of devices that are known here are valid.
        if request.name != AUTO:
            read_name(request.name)
    graph = open_graph(config.data.source)
    has_model = file is not None or any(override.startswith("model.kind=") for override in overrides)
    if graph.types is not None and not has_model:
        config = new_config(None, ["model.kind=rgcn", *overrides])
    config = _with_epochs(config, graph)
    shown = [*_CHANGED_FIRST, *(["data.split"] if graph.num_splits > 1 else [])]
    text = "\n".join([*_head(config, graph, output), commented_yaml(config, shown)])
    write_atomically(destination, text.encode())
    typer.echo(f"wrote {output}. Edit it, then run: hyrt run {quote_path(output)}")


def _with_epochs(config: Config, graph: Graph) -> Config:
    """Return the settings with the number of epochs that a run would use if it is not set."""
    from hyrt.training.setup import PreparedRun

    epochs = config.train.num_epochs(PreparedRun(config, graph).sampler.steps_per_epoch())
    return config.model_copy(update={"train": config.train.model_copy(update={"epochs": epochs})})


def _head(config: Config, graph: Graph, output: Path) -> list[str]:
    """Return the header of the file, with a summary of the dataset and suggested settings."""
    from hyrt.graph.info import format_summary, summarize_graph

    facts = summarize_graph(graph)
    lines = [
        f"Settings of hyrt for {config.data.source}. Train with: hyrt run {output.name}",
        "Lines that begin with # are comments: to change such a setting, remove the # and edit its value.",
        "",
        *format_summary(facts),
    ]
    labelled = sum(facts["class_counts"])
    if facts["labels"] == "classes" and labelled and graph.num_classes > 1:
        share = max(facts["class_counts"]) / labelled
        if share > _MAX_CLASS_SHARE:
            metric = "roc_auc" if graph.num_classes == 2 else "macro_f1"
            lines += [
                "",
                f"One class has {share:.0%} of the labels, so always predicting it reaches this accuracy:",
                f"consider train.metric: {metric}, or train.class_weights: balanced.",
            ]
    if graph.num_splits > 1:
        lines += ["", f"There are {graph.num_splits} splits: use --splits all to train on each of them."]
    return [f"# {line}".rstrip() for line in lines] + [""]
