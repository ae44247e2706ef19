"""`hyrt predict`: predict how long training takes, before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hyrt_perfmodel.assignment import Assignment
    from hyrt_perfmodel.platforms.platform import Platform
    from hyrt_perfmodel.prediction.extra_terms import Terms
    from hyrt_perfmodel.prediction.predict import Prediction
    from hyrt_perfmodel.workloads.workload import TrainingWorkload

    from hyrt.config import Config

# The search for the best split takes seconds with more.
_MOST_ACCELERATORS = 128


def predict(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG.yaml] [key.path=value ...]",
            help="A settings file and changes to settings, as for hyrt run.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="The dataset, as for hyrt run. Named and generated datasets need not be loaded.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="The model: graphsage, gcn, gin or gat.", show_default=False),
    ] = None,
    workload: Annotated[
        Path | None,
        typer.Option(metavar="FILE.yaml", help="A file with all sizes, instead of a dataset and a model."),
    ] = None,
    platform: Annotated[
        str,
        typer.Option(metavar="NAME", help="The machine: a built-in name, a .yaml file, or this-machine."),
    ] = "this-machine",
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="The devices of this-machine that train. By default all that were calibrated.",
        ),
    ] = None,
    accelerators: Annotated[
        str | None,
        typer.Option(metavar="N or A..B", help="The number of accelerators, or a range for a scaling table."),
    ] = None,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Use exactly the published form of the model, with its equal split."),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the scaling table into a file.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Predict how long training takes.

    This prints the times of the stages, the bottleneck, the best assignment, the epoch time and the memory,
    from the performance model. Nothing is trained. To apply a trained model, use `hyrt infer`.

    \b
    Examples:
      hyrt predict
      hyrt predict --data ogbn-papers100M --model graphsage --platform 2x-epyc7763-4x-a5000
      hyrt predict --workload w.yaml --platform p.yaml --paper --json
      hyrt predict --data ogbn-products --platform 2x-epyc7763-4x-u250 --accelerators 1..16
    """  # noqa: D301
    from dataclasses import asdict

    from hyrt_perfmodel.prediction.advice import advise
    from hyrt_perfmodel.prediction.predict import predict as predict_training
    from hyrt_perfmodel.prediction.predict import with_accelerators

    from hyrt.errors import ConfigError
    from hyrt.predict.fpga_prediction import kernel_sentences, with_kernels
    from hyrt.report.predict_table import prediction_lines, scaling_lines
    from hyrt.report.scaling_plot import check_plot, draw_scaling

    counts = _counts(accelerators)
    if plot is not None and len(counts) < 2:
        raise ConfigError("--plot draws the scaling table: give a range, such as --accelerators 1..16")
    if plot is not None:
        check_plot(plot)
    try:
        machine, stale = _platform(platform, devices)
        if len(counts) == 1:
            machine = with_accelerators(machine, counts[0])
        config = None if workload is not None else _config(arguments or [], data, model, machine, platform)
        work = _work(arguments or [], data, model, workload, config)
        machine, no_kernels = with_kernels(machine, work, config, paper=paper)
        steps = _on(machine, work, is_file=workload is not None)
        machine = _with_tasks(machine, steps)
        terms = None if config is None else _terms(config)
        given = None if config is None or paper else _given(config, machine, steps)
        now = predict_training(machine, steps, assignment=given, terms=terms, paper=paper)
        advice = advise(machine, steps, now, terms=terms, paper=paper)
        scaling = []
        for count in counts if len(counts) > 1 else ():
            scaled = with_accelerators(machine, count)
            steps = _on(scaled, work, is_file=workload is not None)
            scaled = _with_tasks(scaled, steps)
            scaling.append((count, predict_training(scaled, steps, terms=terms, paper=paper)))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except ArithmeticError as error:
        raise ConfigError(f"a size or a rate is too large or too small to compute with: {error}") from error
    for each in (now, *(prediction for _, prediction in scaling)):
        _check_finite(each)
    if plot is not None:
        draw_scaling(scaling, plot)
    assumptions = [
        *([] if config is None else _assumptions(config)),
        *no_kernels,
        *kernel_sentences(machine, now),
    ]
    if as_json:
        import json

        found: dict[str, Any] = {
            **now.to_json(),
            "advice": [asdict(line) for line in advice],
            "assumptions": assumptions,
            "stale": stale,
        }
        if scaling:
            found["scaling"] = [{"accelerators": count, **each.to_json()} for count, each in scaling]
        typer.echo(json.dumps(found))
        return
    lines = prediction_lines(now, advice, machine, assumptions)
    if scaling:
        lines += ["", *scaling_lines(scaling)]
    _print(lines)


def _with_tasks(machine: Platform, steps: TrainingWorkload) -> Platform:
    """FPGAs of a known design with the tasks that fit on the chip."""
    if all(accelerator.design is None for accelerator in machine.accelerators):
        return machine
    from hyrt_hls.task.targets import with_task_targets

    return with_task_targets(machine, steps)


def _counts(text: str | None) -> list[int]:
    from hyrt.errors import ConfigError

    if text is None:
        return []
    first, dots, last = text.partition("..")
    try:
        counts = list(range(int(first), int(last if dots else first) + 1))
    except ValueError:
        counts = []
    if not counts or counts[0] < 0 or counts[-1] > _MOST_ACCELERATORS:
        raise ConfigError(
            f"--accelerators {text}: give a number such as 4, or a range such as 1..16, of at most "
            f"{_MOST_ACCELERATORS}"
        )
    return counts


def _platform(name: str, devices: str | None) -> tuple[Platform, list[str]]:
    """And why its calibration no longer holds."""
    from hyrt_perfmodel.platforms.calibration_file import CalibrationError
    from hyrt_perfmodel.platforms.platform_file import THIS_MACHINE, load_platform, platform_names

    from hyrt.errors import ConfigError

    if name != THIS_MACHINE and devices is not None:
        raise ConfigError("--devices chooses among the devices of this machine: omit --devices or --platform")
    try:
        found = load_platform(name)
    except CalibrationError as error:
        others = ", ".join(other for other in platform_names() if other != THIS_MACHINE)
        raise ConfigError(f"{error}, or give a platform: {others}, or a .yaml file") from error
    stale = _say_what_is_stale() if name == THIS_MACHINE else []
    if devices is None:
        return found, stale
    from hyrt_perfmodel.platforms.this_machine import full_name, with_trainers

    names = [full_name(part.strip()) for part in devices.split(",")]
    chosen = with_trainers(found, names)
    if chosen is None:
        there = ", ".join(trainer.name for trainer in found.trainers())
        raise ConfigError(
            f"--devices {devices}: the calibrated devices are {there}: run `hyrt calibrate` for others"
        )
    return chosen, stale


def _say_what_is_stale() -> list[str]:
    """On standard error, and as reasons; a calibration of another machine is no calibration of this one."""
    from hyrt_perfmodel.platforms.calibration_file import read_calibration, why_stale

    from hyrt.errors import ConfigError
    from hyrt.predict.calibrate.identity import this_machine

    kept = read_calibration()
    here = this_machine(kept.machine.devices)
    reasons = why_stale(kept, here)
    if reasons and kept.machine.node != here.node:
        raise ConfigError(f"the calibration was {reasons[0]}: run `hyrt calibrate`, or give a --platform")
    for reason in reasons:
        typer.echo(
            f"warning: the calibration is stale, because it was {reason}: run `hyrt calibrate`", err=True
        )
    return reasons


def _config(
    arguments: Sequence[str], data: str | None, model: str | None, machine: Platform, platform: str
) -> Config:
    """The settings; on this machine `devices` are the trainers that are predicted."""
    from hyrt_perfmodel.platforms.platform_file import THIS_MACHINE

    from hyrt.config.command_line import new_config, option_overrides, sort_arguments

    file, overrides = sort_arguments(arguments)
    names = ",".join(trainer.name for trainer in machine.trainers()) if platform == THIS_MACHINE else None
    options = option_overrides(data__source=data, model__kind=model, devices=names)
    return new_config(file, [*options, *overrides])


def _work(
    arguments: Sequence[str],
    data: str | None,
    model: str | None,
    workload: Path | None,
    config: Config | None,
) -> TrainingWorkload:
    if config is not None:
        from hyrt.predict.predicted_training import training_of

        return training_of(config)
    from hyrt_perfmodel.workloads.workload_file import load_workload

    from hyrt.errors import ConfigError

    if arguments or data is not None or model is not None:
        raise ConfigError("--workload gives all sizes: omit --data, --model and settings")
    assert workload is not None
    return load_workload(workload)


def _given(config: Config, machine: Platform, work: TrainingWorkload) -> Assignment | None:
    """The assignment that the settings fix, in part or whole; None where they leave all of it open."""
    from dataclasses import replace

    from hyrt_perfmodel.prediction.mapping import initial_assignment

    from hyrt.device.names import split_by_shares

    runtime = config.runtime
    counts = {"sample": runtime.sample_threads, "load": runtime.load_threads, "train": runtime.train_threads}
    fixed = {stage: count for stage, count in counts.items() if count}
    if not fixed and config.split is None:
        return None
    terms = _terms(config)
    found = initial_assignment(machine, work, terms=terms)
    if fixed:
        found = initial_assignment(machine, work, terms=terms, threads=replace(found.threads, **fixed))
    if config.split is not None:
        found = replace(found, split=tuple(split_by_shares(work.batch_size, config.split)))
    return found


def _terms(config: Config) -> Terms:
    from hyrt.predict.configured_training import terms_of

    return terms_of(config)


def _on(machine: Platform, work: TrainingWorkload, *, is_file: bool) -> TrainingWorkload:
    """The work on a machine: a workload given in full has a batch for each trainer."""
    from dataclasses import replace

    if not is_file:
        return work
    return replace(work, batch_size=work.batch_size * len(machine.trainers()))


def _check_finite(prediction: Prediction) -> None:
    """Rates of almost nothing, and work of nothing at all, are numbers too."""
    import math

    from hyrt.errors import ConfigError

    times_s = (*prediction.stages_s.values(), prediction.epoch_s, prediction.ideal_epoch_s)
    if not all(math.isfinite(time_s) for time_s in (*times_s, prediction.throughput_mteps)):
        raise ConfigError(
            "a size or a rate is too large or too small to compute with: an epoch on "
            f"{prediction.platform} takes {prediction.epoch_s} s, its {prediction.bottleneck} "
            f"{prediction.iteration_s} s per step"
        )
    if prediction.iteration_s == 0 or prediction.epoch_s == 0:
        raise ConfigError("a step of this workload takes no time: give vertices, edges and features above 0")


def _assumptions(config: Config) -> list[str]:
    from hyrt.predict.predicted_training import assumptions_of

    return assumptions_of(config)


def _print(lines: Sequence[str]) -> None:
    import shutil
    import sys

    from hyrt.report.encodable import encodable
    from hyrt.report.predict_table import wrapped

    # Into a file or a pipe lines go whole: what reads them need not join them again.
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in wrapped(lines, width):
        typer.echo(encodable(line, sys.stdout.encoding))
