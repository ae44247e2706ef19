"""`hyrt run`: train a model, or resume a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyrt.cli.options import Data, Devices, Model, Output, Settings

if TYPE_CHECKING:
    from hyrt.config import Config
    from hyrt.report.records.run_folder import RunFolder
    from hyrt.report.terminal.progress import Progress


def run(
    arguments: Settings = None,
    data: Data = None,
    model: Model = None,
    devices: Devices = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Resume the run in this folder.")] = None,
    output: Output = Path("runs"),
    name: Annotated[
        str | None,
        typer.Option(help="The name of the run folder. By default the time, the model and the dataset."),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write scalars for TensorBoard into the run folder.")
    ] = False,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Show the pipeline, its queues and the trainers live.")
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Record what ran where and when, for ui.perfetto.dev.")
    ] = False,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings as YAML and exit.")
    ] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Print plain lines even on a terminal.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only warnings and the result.")] = False,
) -> None:
    """Train a model.

    The model is trained on a graph and evaluated, and everything about the run is stored in a run folder.
    Without arguments, hyrt trains GraphSAGE on a generated graph in less than a minute.

    \b
    Examples:
      hyrt run
      hyrt run --data cora.npz --model gcn train.epochs=100 model.hidden=16
      hyrt run settings.yaml train.lr=1e-3 --devices cpu:0,cpu:1
      hyrt run --resume runs/2026-11-21-101502-graphsage-community

    Ctrl-C finishes the step, writes a checkpoint and prints how to resume. A second Ctrl-C exits at once.
    """  # noqa: D301
    from hyrt.config.command_line import new_config, option_overrides, resumed_config, sort_arguments

    file, overrides = sort_arguments(arguments or [])
    overrides = [*option_overrides(data__source=data, model__kind=model, devices=devices), *overrides]
    if trace:
        overrides = ["runtime.trace=true", *overrides]
    if resume is None:
        config = new_config(file, overrides)
    else:
        from hyrt.report.records.run_folder import RunFolder

        folder = RunFolder.open(resume)
        config = resumed_config(folder.config(), file, overrides)
    shown = _Shown(plain=plain, quiet=quiet, dashboard=dashboard, tensorboard=tensorboard)
    if tensorboard:
        from hyrt.report.records.tensorboard import check_tensorboard

        check_tensorboard()
    if print_config:
        from hyrt.config import to_yaml

        typer.echo(to_yaml(config), nl=False)
    elif resume is None:
        _start(config, output, name, shown)
    else:
        _resume(config, folder, shown)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """How a run is shown, as its options say."""

    plain: bool
    quiet: bool
    dashboard: bool
    tensorboard: bool

    def progress(self) -> Progress:
        from hyrt.report.terminal.progress import Progress

        return Progress(plain=self.plain, quiet=self.quiet, with_dashboard=self.dashboard)


def _start(config: Config, output: Path, name: str | None, shown: _Shown) -> None:
    from hyrt.machine.stop_signals import StopSignals

    with StopSignals() as signals:
        from hyrt.machine.process_settings import prepare_process

        prepare_process()
        from hyrt.cli.run_session import Session
        from hyrt.config.command_line import located
        from hyrt.graph import open_graph
        from hyrt.observe.events import Notice
        from hyrt.predict.choose_devices import resolve_auto
        from hyrt.report.records.run_folder import RunFolder
        from hyrt.report.records.run_lock import locked

        config = located(config)
        # Opened first, so that bad data leaves nothing behind.
        graph = open_graph(config.data.source, normalize=config.data.normalize)
        config, choice = resolve_auto(config, graph)
        with (
            RunFolder.create(output, name, config) as folder,
            locked(folder.path),
            shown.progress() as progress,
        ):
            if choice is not None and choice.unused:
                unused = ", ".join(f"{device} ({reason})" for device, reason in choice.unused)
                progress.handle(Notice(kind="info", text=f"devices that are not used: {unused}"))
            session = Session(config, graph, folder, progress, signals, tensorboard=shown.tensorboard)
            exit_code = session.run(None, is_new=True)
    raise typer.Exit(exit_code)


def _resume(config: Config, folder: RunFolder, shown: _Shown) -> None:
    from hyrt.machine.stop_signals import StopSignals
    from hyrt.report.records.run_lock import locked

    with StopSignals() as signals, locked(folder.path):
        folder.remove_leftovers()
        if folder.is_finished(config.train.epochs):
            typer.echo(
                f"{folder.path} has ended: nothing to do. A finished run continues with a larger "
                "train.epochs; a run that stopped early (train.patience) does not continue"
            )
            return
        from hyrt.machine.process_settings import prepare_process

        prepare_process()
        from hyrt.cli.run_session import Session, newest_checkpoint
        from hyrt.config.command_line import check_same_training
        from hyrt.graph import open_graph

        with folder, shown.progress() as progress:
            checkpoint = newest_checkpoint(folder, progress)
            if checkpoint is not None:
                check_same_training(config, checkpoint.state["config"])
            graph = open_graph(config.data.source, normalize=config.data.normalize)
            session = Session(config, graph, folder, progress, signals, tensorboard=shown.tensorboard)
            exit_code = session.run(checkpoint, is_new=False)
    raise typer.Exit(exit_code)
