"""`hyrt doctor`: check this machine for everything that a run needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hyrt.cli.options import AsJson, Data, Devices, FullGraph, Model, Output, Settings


def doctor(
    arguments: Settings = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="The settings file; the same as the argument CONFIG.yaml."
        ),
    ] = None,
    data: Data = None,
    model: Model = None,
    devices: Devices = None,
    full_graph: FullGraph = False,
    output: Output = Path("runs"),
    limit: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            max=3600,
            help="The time limit for each package, backend and measurement.",
        ),
    ] = 60.0,
    as_json: AsJson = False,
) -> None:
    """Check that this machine has what a run needs.

    This checks versions, CPUs, memory, disk and caches, and runs a training step on every backend. Each check
    runs in a separate process, so that a broken package or driver is reported with its remedy and does not
    end the command. If you specify settings, memory and disk are checked for a run with these settings.
    The exit code is 1 if something that the run needs is broken; without settings, only the CPU is needed.

    \b
    Examples:
      hyrt doctor
      hyrt doctor --devices auto
      hyrt doctor settings.yaml data.batch_size=4096 --json
    """  # noqa: D301
    from hyrt.config.command_line import full_graph_override
    from hyrt.doctor.diagnose import DoctorRequest, diagnose

    words = [*([str(config)] if config is not None else []), *(arguments or [])]
    if full_graph:
        words.append(full_graph_override(words))
    request = DoctorRequest(
        words=tuple(words), options={"data__source": data, "model__kind": model, "devices": devices}
    )
    raise typer.Exit(diagnose(request, output, limit_s=limit, as_json=as_json))
