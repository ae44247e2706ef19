"""The arguments and options that several commands have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hyrt_perfmodel.workloads.workload import TrainingWorkload

Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CONFIG.yaml] [key.path=value ...]",
        help="A settings file, and changes to settings, such as train.epochs=5 model.hidden=256.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="SOURCE",
        help="The dataset: a .npz file, a folder of .npy files, or a name such as ogbn-products.",
    ),
]
Model = Annotated[str | None, typer.Option(metavar="KIND", help="The model: graphsage, gcn, gin or gat.")]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="The devices that train: cpu,cuda:0; with shares: cpu=1,cuda:0=3; or auto. See hyrt devices.",
    ),
]
Output = Annotated[Path, typer.Option(metavar="FOLDER", help="The folder in which the run folder is made.")]
Workload = Annotated[
    Path | None,
    typer.Option(metavar="FILE.yaml", help="A file with all sizes, instead of a dataset and a model."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what exists.")]


def workload_alone(file: Path, arguments: Sequence[str], options: Mapping[str, object]) -> TrainingWorkload:
    """What `--workload` says, beside which nothing else may describe the work.

    Raises
    ------
    ConfigError
        Naming the settings and the options that are given too.
    """
    from hyrt_perfmodel.workloads.workload_file import load_workload

    from hyrt.errors import ConfigError

    given = [f"--{name}" for name, value in options.items() if value is not None]
    if arguments or given:
        raise ConfigError(f"--workload gives all sizes: omit {', '.join([*given, *arguments])}")
    return load_workload(file)
