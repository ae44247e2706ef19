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
            help="The settings of a run, as for hyrt run: they are compared with this machine.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The settings file, too.", show_default=False),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="SOURCE", help="As for hyrt run.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="KIND", help="As for hyrt run.", show_default=False)
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="As for hyrt run: these have to work; the CPU by default.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Will hold the run folders.")] = Path("runs"),
    limit: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=3600,
            help="Of waiting, for each package, backend and measurement.",
        ),
    ] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check what a run needs: versions, CPUs, memory, disk, caches, and a training step on every backend.

    Everything is tried in processes of its own: a broken package or driver is a line with what to do, never a crash.
    With settings, memory and disk are compared with what their run takes. Exit code 1: something a run needs is broken.

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
