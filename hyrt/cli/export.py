"""`hyrt export`: write a trained model as files that do not need hyrt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hyrt.cli.options import Force


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of the run.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder to write.")],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE", help="A dataset with the same features. By default, the dataset of the run."
        ),
    ] = None,
    checkpoint: Annotated[
        str,
        typer.Option("--checkpoint", metavar="best|newest|FILE", help="The checkpoint whose weights to use."),
    ] = "best",
    force: Force = False,
) -> None:
    """Write a trained model as a plain PyTorch module.

    The folder contains weights.safetensors, arguments.json and model.py, which needs only torch and
    safetensors.

    \b
    Examples:
      hyrt export runs/2026-11-21-101502-graphsage-community -o model
      python -c "from model import load; print(load('.'))"
    """  # noqa: D301
    from hyrt.config.command_line import option_overrides
    from hyrt.errors import ConfigError
    from hyrt.runtime.process_setup import prepare_process

    destination = output.absolute()
    if destination.exists() and not (force and (destination / "arguments.json").is_file()):
        remedy = (
            "--force replaces only the output of hyrt export"
            if force
            else "choose another --output, or add --force"
        )
        raise ConfigError(f"{output} already exists: {remedy}")
    if not destination.parent.is_dir():
        raise ConfigError(f"{destination.parent} does not exist: create it, or choose another --output")
    prepare_process()
    from hyrt.report.printed_lines import quote_path
    from hyrt.report.trained_run import open_trained_run, write_export

    trained = open_trained_run(
        run, option_overrides(data__source=data), checkpoint, _warn, labels_count=False
    )
    notes = write_export(trained, destination)
    typer.echo(f"wrote {quote_path(output)}: model.py, arguments.json, weights of {trained.weights}")
    for note in notes:
        typer.echo(note)


def _warn(text: str) -> None:
    typer.echo(f"warning: {text}", err=True)
