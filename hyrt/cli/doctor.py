"""`hyrt doctor`: what a run needs of this machine, tried."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def doctor(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG.yaml] [key.path=value ...]",
            help="A settings file and changes to settings, as for hyrt run.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The settings file, as an option.", show_default=False),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="The dataset, as for hyrt run.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="KIND", help="The model, as for hyrt run.", show_default=False)
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="The devices that must work, as for hyrt run. By default the CPU.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The folder in which run folders will be made.")
    ] = Path("runs"),
    limit: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=3600,
            help="The time to wait for each package, backend and measurement.",
        ),
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check that this machine has what a run needs.

    This checks versions, CPUs, memory, disk and caches, and runs a training step on every backend. Each check
    runs in a process of its own, so that a broken package or driver is reported with its remedy and does not
    end the command. With settings, memory and disk are compared with what their run needs. The exit code is 1
    if something that the run needs is broken.

    \b
    Examples:
      hyrt doctor
      hyrt doctor --devices auto
      hyrt doctor settings.yaml data.batch_size=4096 --json
    """  # noqa: D301
    from hyrt.doctor.diagnose import diagnose
    from hyrt.doctor.settings import Asked

    words = [*([str(config)] if config is not None else []), *(arguments or [])]
    asked = Asked(
        words=tuple(words), options={"data__source": data, "model__kind": model, "devices": devices}
    )
    raise typer.Exit(diagnose(asked, output, limit_s=limit, as_json=as_json))
