"""`hyrt run`: train a model, or resume a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyrt.cli.options import (
    BatchSize,
    Data,
    Devices,
    Epochs,
    FullGraph,
    Hidden,
    Layers,
    LearningRate,
    Model,
    Output,
    Seed,
    Settings,
)

if TYPE_CHECKING:
    from hyrt.cli.rank_session import ResumedSettings
    from hyrt.config import Config
    from hyrt.distributed.launch import LaunchInfo
    from hyrt.graph.graph import Graph
    from hyrt.report.progress import Progress
    from hyrt.report.run_folder import RunFolder
    from hyrt.report.run_record import RunSeries
    from hyrt.runtime.shutdown import StopSignals

_JOIN_SETTINGS = "distributed.timeout_s="
# Every run has a folder, and even listing the settings of a longer series would take days.
_MAX_SEEDS = 10_000


def run(
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
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume the run or the series in this folder.")
    ] = None,
    output: Output = Path("runs"),
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The name of the run folder. By default the time, the model and the dataset.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=_MAX_SEEDS,
            help="Train with N seeds, and print the mean and deviation of each metric.",
        ),
    ] = None,
    splits: Annotated[
        str | None,
        typer.Option(metavar="all|0,1,...", help="Train each seed on several splits of the dataset."),
    ] = None,
    loggers: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Also log the run for these programs: tensorboard, mlflow, wandb (offline)."
        ),
    ] = None,
    dashboard: Annotated[
        bool,
        typer.Option("--dashboard", help="Show a live view of the pipeline, its queues and the trainers."),
    ] = False,
    trace: Annotated[
        bool, typer.Option("--trace", help="Record a trace of all threads and devices, for ui.perfetto.dev.")
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
      hyrt run --data cora.npz --model gcn --epochs 100 --hidden 16 model.dropout=0.3
      hyrt run settings.yaml train.lr=1e-3 --devices cpu:0,cpu:1
      hyrt run --data minesweeper.npz --seeds 3 --splits all
      hyrt run --data cora.npz --model gcn --full-graph
      hyrt run --resume runs/2026-11-21-101502-graphsage-community

    With --seeds or --splits, the runs form a series: each has its own run folder inside the folder of the
    series, and --resume continues the series.

    Ctrl-C finishes the step, writes a checkpoint and prints how to resume. A second Ctrl-C exits at once.
    """  # noqa: D301
    from hyrt.config.command_line import (
        full_graph_override,
        make_paths_absolute,
        new_config,
        option_overrides,
        resumed_config,
        short_option_overrides,
        split_arguments,
    )
    from hyrt.distributed.launch import launch_info_from_env, report_join_failures

    display = _DisplayOptions(plain=plain, quiet=quiet, dashboard=dashboard)
    series = None
    with report_join_failures():
        short_overrides = short_option_overrides(epochs, lr, hidden, layers, batch_size, seed)
        file, overrides = split_arguments([*short_overrides, *(arguments or [])])
        options = option_overrides(data__source=data, model__kind=model, devices=devices, loggers=loggers)
        overrides = [*options, *overrides]
        if full_graph:
            overrides = [full_graph_override(overrides), *overrides]
        if trace:
            overrides = ["runtime.trace=true", *overrides]
        launch = launch_info_from_env()
        is_follower = resume is not None and launch is not None and launch.rank > 0 and not print_config
        if resume is None:
            config = new_config(file, overrides)
        else:
            from hyrt.errors import ConfigError
            from hyrt.report.run_folder import SERIES, RunFolder
            from hyrt.report.run_record import RunSeries

            if seeds is not None or splits is not None:
                raise ConfigError("--seeds and --splits start a new series: to resume a series, remove them")
            if name is not None or output != Path("runs"):
                option = "--output" if name is None else "--name"
                raise ConfigError(f"a resumed run stays in its folder, {resume}: remove {option}")
            if (resume / SERIES).is_file():
                if launch is not None:
                    raise ConfigError(
                        f"{resume} is a series of runs, which needs a single process: resume it without "
                        "torchrun"
                    )
                series = RunSeries.open(resume, file, overrides)
                config = series.config
            elif is_follower:
                # Rank 0 reads the run folder and broadcasts its settings.
                config = new_config(
                    None, [override for override in overrides if override.startswith(_JOIN_SETTINGS)]
                )
            else:
                folder = RunFolder.open(resume)
                config = make_paths_absolute(resumed_config(folder.config(), file, overrides))
        if config.loggers:
            from hyrt.report.loggers.logger import check_loggers

            check_loggers(config.loggers)
    if print_config:
        from hyrt.config import to_yaml

        typer.echo(to_yaml(config), nl=False)
    elif series is not None:
        _resume_series(series, display)
    elif resume is None:
        _start(config, output, name, display, seeds, splits)
    elif launch is not None:
        _resume_on_ranks(config, launch, display, None if is_follower else folder, file, overrides)
    else:
        _resume_alone(config, folder, display)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DisplayOptions:
    """Display options of a run."""

    plain: bool
    quiet: bool
    dashboard: bool

    def progress(self) -> Progress:
        from hyrt.report.progress import Progress

        return Progress(plain=self.plain, quiet=self.quiet, with_dashboard=self.dashboard)

    def say(self, text: str) -> None:
        """Print a line about the next run, unless output is quiet."""
        if not self.quiet:
            from hyrt.report.printed_lines import print_wrapped

            print_wrapped([text])


def _run_as_rank(
    config: Config,
    launch: LaunchInfo,
    display: _DisplayOptions,
    signals: StopSignals,
    folder: Callable[[int], tuple[RunFolder, bool]],
    resumed: ResumedSettings | None = None,
) -> int:
    """Train as one of the ranks that a launcher has started."""
    from hyrt.cli.rank_session import RankSession

    return RankSession(
        config=config,
        launch=launch,
        signals=signals,
        progress=display.progress,
        folder=folder,
        resumed=resumed,
    ).run()


def _start(
    config: Config,
    output: Path,
    name: str | None,
    display: _DisplayOptions,
    seeds: int | None,
    splits: str | None,
) -> None:
    from hyrt.runtime.shutdown import StopSignals

    with StopSignals() as signals:
        from hyrt.runtime.process_setup import prepare_process

        prepare_process()
        from hyrt.cli.run_session import RunSession
        from hyrt.config.command_line import make_paths_absolute
        from hyrt.distributed.launch import launch_info_from_env, report_join_failures
        from hyrt.errors import ConfigError
        from hyrt.predict.choose_devices import resolve_auto, share_columns
        from hyrt.predict.predict_platform import resolve_rows
        from hyrt.report.run_folder import RunFolder
        from hyrt.report.run_process import lock_run
        from hyrt.report.run_record import RunSeries, parse_splits
        from hyrt.telemetry.events import Notice
        from hyrt.training.open_graph import opened_graph
        from hyrt.training.setup import PreparedRun

        config = make_paths_absolute(config)
        launch = launch_info_from_env()
        if launch is not None:
            if seeds is not None or splits is not None:
                with report_join_failures():
                    raise ConfigError(
                        "--seeds and --splits start a series of runs, which needs a single process: start it "
                        "without torchrun"
                    )

            def folder_of(restarts: int) -> tuple[RunFolder, bool]:
                """Return the run folder of a restarted launch, or a new one, and whether it is new."""
                existing = output / name if name is not None and restarts else None
                if existing is not None and (existing / "config.yaml").is_file():
                    return RunFolder.open(existing), False
                if existing is not None:
                    RunFolder.remove_incomplete(existing)
                return RunFolder.create(output, name, config), True

            raise typer.Exit(_run_as_rank(config, launch, display, signals, folder_of))
        # Open the graph first, so that invalid data does not leave an empty run folder.
        graph = opened_graph(config)
        prepared = PreparedRun(config, graph)
        config, choice = resolve_auto(config, prepared)
        config, prepared, row_note = resolve_rows(config, prepared)
        graph = prepared.graph
        config, column_note = share_columns(config, prepared)
        unused = ""
        if choice is not None and choice.unused:
            unused = ", ".join(f"{device} ({reason})" for device, reason in choice.unused)
            unused = f"unused devices: {unused}"
        if seeds is not None or splits is not None:
            numbers = parse_splits(splits, config, graph)
            series = RunSeries.create(output, name, config, seeds, numbers)
            for line in filter(None, (unused, row_note, column_note)):
                display.say(line)
            exit_code = _run_series(series, graph, display, signals)
        else:
            with (
                RunFolder.create(output, name, config) as folder,
                lock_run(folder.path),
                display.progress() as progress,
            ):
                for line in filter(None, (unused, row_note, column_note)):
                    progress.handle(Notice(kind="info", text=line))
                session = RunSession(
                    *(config, graph, folder, progress, signals),
                    prepared=prepared,
                )
                exit_code = session.run(None, is_new=True)
    raise typer.Exit(exit_code)


def _resume_series(series: RunSeries, display: _DisplayOptions) -> None:
    from hyrt.runtime.shutdown import StopSignals

    with StopSignals() as signals:
        from hyrt.runtime.process_setup import prepare_process

        prepare_process()
        from hyrt.training.open_graph import opened_graph

        exit_code = _run_series(series, opened_graph(series.config), display, signals)
    raise typer.Exit(exit_code)


def _run_series(series: RunSeries, graph: Graph, display: _DisplayOptions, signals: StopSignals) -> int:
    """Train the unfinished runs of a series and print their summary; return the exit code."""
    from hyrt.cli.run_session import RunSession, find_newest_checkpoint
    from hyrt.config.command_line import check_same_training
    from hyrt.report.printed_lines import print_wrapped, quote_path
    from hyrt.report.progress_text import series_lines
    from hyrt.report.run_process import lock_run

    exit_code = 0
    runs = series.runs
    with lock_run(series.path):
        series.store_settings()
        for number, (path, config) in enumerate(runs, 1):
            try:
                folder, is_new = series.open_or_create_run(path, config)
                if folder.is_finished(config.train.epochs):
                    continue
                with folder, lock_run(path), display.progress() as progress:
                    display.say(f"run {number} of {len(runs)}: split {config.data.split}, seed {config.seed}")
                    folder.remove_leftovers()
                    checkpoint = None if is_new else find_newest_checkpoint(folder, progress)
                    if checkpoint is not None:
                        check_same_training(config, checkpoint.state["config"])
                    session = RunSession(
                        *(config, graph, folder, progress, signals),
                        series_folder=series.path,
                    )
                    exit_code = session.run(checkpoint, is_new=is_new)
            except BaseException:
                series.summarize_failure()
                raise
            if exit_code:
                break
        summary = series.summarize()
    print_wrapped(series_lines(summary, len(runs)))
    print_wrapped([f"series {quote_path(series.path)} · summary {quote_path(series.path / 'summary.json')}"])
    return exit_code


def _resume_on_ranks(
    config: Config,
    launch: LaunchInfo,
    display: _DisplayOptions,
    folder: RunFolder | None,
    file: Path | None,
    overrides: list[str],
) -> None:
    """Resume a run as one of several ranks; ranks other than 0 receive the settings from rank 0."""
    from hyrt.runtime.shutdown import StopSignals

    with StopSignals() as signals:
        from hyrt.runtime.process_setup import prepare_process

        prepare_process()
        from hyrt.cli.rank_session import PER_RANK_SETTINGS, ResumedSettings
        from hyrt.config import to_yaml
        from hyrt.config.command_line import make_paths_absolute, resumed_config

        def apply_changes(run_config: Config) -> Config:
            return make_paths_absolute(resumed_config(run_config, file, overrides, also=PER_RANK_SETTINGS))

        def folder_of(restarts: int) -> tuple[RunFolder, bool]:
            assert folder is not None
            return folder, False

        text = None if folder is None else to_yaml(folder.config())
        resumed = ResumedSettings(text, apply_changes)
        raise typer.Exit(_run_as_rank(config, launch, display, signals, folder_of, resumed))


def _resume_alone(config: Config, folder: RunFolder, display: _DisplayOptions) -> None:
    from hyrt.report.run_process import lock_run
    from hyrt.runtime.shutdown import StopSignals

    with StopSignals() as signals, lock_run(folder.path):
        folder.remove_leftovers()
        if folder.is_finished(config.train.epochs):
            typer.echo(
                f"the run in {folder.path} has already ended, so there is nothing to do. To "
                "continue a finished run, increase train.epochs; a run that stopped early "
                "(train.patience) cannot be continued"
            )
            return
        from hyrt.runtime.process_setup import prepare_process

        prepare_process()
        from hyrt.cli.run_session import RunSession, find_newest_checkpoint
        from hyrt.config.command_line import check_same_training
        from hyrt.training.open_graph import opened_graph

        with folder, display.progress() as progress:
            checkpoint = find_newest_checkpoint(folder, progress)
            if checkpoint is not None:
                check_same_training(config, checkpoint.state["config"])
            with folder.explain_moved_dataset(config):
                graph = opened_graph(config, links=folder.links_path)
            session = RunSession(config, graph, folder, progress, signals)
            exit_code = session.run(checkpoint, is_new=False)
    raise typer.Exit(exit_code)
