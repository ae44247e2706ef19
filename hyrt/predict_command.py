"""`hyrt predict`: how long training takes, before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hyrt_perfmodel.advice import Advice
    from hyrt_perfmodel.assignment import Assignment
    from hyrt_perfmodel.platform import Platform
    from hyrt_perfmodel.predict import Prediction
    from hyrt_perfmodel.workload import Training

    from hyrt.config import Config


def predict(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG.yaml] [key.path=value ...]",
            help="A file of settings, and settings to change, as for hyrt run.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="As for hyrt run. ogbn-products, ogbn-papers100M, mag240m and synthetic:... are not loaded.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="KIND", help="graphsage, gcn, gin or gat.", show_default=False)
    ] = None,
    workload: Annotated[
        Path | None, typer.Option(metavar="FILE.yaml", help="Sizes in full, instead of dataset and model.")
    ] = None,
    platform: Annotated[
        str,
        typer.Option(metavar="NAME", help="A built-in machine, a .yaml file, or this one (hyrt calibrate)."),
    ] = "this-machine",
    devices: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="this-machine: its trainers; default: all that were calibrated."),
    ] = None,
    accelerators: Annotated[
        str | None,
        typer.Option(metavar="N or A..B", help="How many accelerators; a range prints the scaling table."),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The published form of the model, exactly: nothing is re-split.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the scaling table.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Estimate training time; for inference use `hyrt infer`.

    Predicts stages, bottleneck, assignment, epoch time and memory from the performance model. Nothing is trained.

    \b
    Examples:
      hyrt predict
      hyrt predict --data ogbn-papers100M --model graphsage --platform 2x-epyc7763-4x-a5000
      hyrt predict --workload w.yaml --platform p.yaml --paper --json
      hyrt predict --data ogbn-products --platform 2x-epyc7763-4x-u250 --accelerators 1..16
    """  # noqa: D301
    from dataclasses import asdict

    from hyrt_perfmodel.advice import advise
    from hyrt_perfmodel.predict import predict as predict_training
    from hyrt_perfmodel.predict import with_accelerators

    from hyrt.errors import ConfigError

    counts = _counts(accelerators)
    if plot is not None and len(counts) < 2:
        raise ConfigError("--plot draws the scaling table: give a range, like --accelerators 1..16")
    try:
        machine = _platform(platform, devices)
        if len(counts) == 1:
            machine = with_accelerators(machine, counts[0])
        config = None if workload is not None else _config(arguments or [], data, model, machine, platform)
        work = _work(arguments or [], data, model, workload, config)
        steps = _on(machine, work, is_file=workload is not None)
        given = None if config is None or paper else _given(config, machine, steps)
        now = predict_training(machine, steps, assignment=given, paper=paper)
        advice = advise(machine, steps, now, paper=paper)
        scaling = []
        for count in counts if len(counts) > 1 else ():
            scaled = with_accelerators(machine, count)
            steps = _on(scaled, work, is_file=workload is not None)
            scaling.append((count, predict_training(scaled, steps, paper=paper)))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except OverflowError as error:
        raise ConfigError(f"a size or a rate is beyond what can be computed with: {error}") from error
    if plot is not None:
        _draw(scaling, plot)
    if as_json:
        import json

        found: dict[str, Any] = {**now.to_json(), "advice": [asdict(line) for line in advice]}
        if scaling:
            found["scaling"] = [{"accelerators": count, **each.to_json()} for count, each in scaling]
        typer.echo(json.dumps(found))
        return
    for line in [*_lines(now, advice), *_scaling_lines(scaling)]:
        typer.echo(line)


def _counts(text: str | None) -> list[int]:
    from hyrt.errors import ConfigError

    if text is None:
        return []
    first, dots, last = text.partition("..")
    try:
        counts = list(range(int(first), int(last if dots else first) + 1))
    except ValueError:
        counts = []
    if not counts or counts[0] < 0 or counts[-1] > 1024:
        raise ConfigError(
            f"--accelerators {text}: give a number like 4, or a range like 1..16, of at most 1024"
        )
    return counts


def _platform(name: str, devices: str | None) -> Platform:
    from hyrt_perfmodel.calibration import CalibrationError
    from hyrt_perfmodel.platform_file import THIS_MACHINE, load_platform, platform_names

    from hyrt.errors import ConfigError

    if name != THIS_MACHINE and devices is not None:
        raise ConfigError("--devices chooses among this machine's: leave it, or --platform, out")
    try:
        found = load_platform(name)
    except CalibrationError as error:
        others = ", ".join(other for other in platform_names() if other != THIS_MACHINE)
        raise ConfigError(f"{error}, or name a platform: {others}, or a .yaml file") from error
    if name == THIS_MACHINE:
        _say_what_is_stale()
    if devices is None:
        return found
    from hyrt_perfmodel.this_machine import full_name, with_trainers

    names = [full_name(part.strip()) for part in devices.split(",")]
    chosen = with_trainers(found, names)
    if chosen is None:
        there = ", ".join(trainer.name for trainer in found.trainers())
        raise ConfigError(f"--devices {devices}: calibrated are {there}: run `hyrt calibrate` for others")
    return chosen


def _say_what_is_stale() -> None:
    """On standard error; a calibration of another machine is no calibration of this one."""
    from hyrt_perfmodel.calibration import read_calibration, why_stale

    from hyrt.errors import ConfigError
    from hyrt.runtime.calibrate.identity import this_machine

    kept = read_calibration()
    here = this_machine(kept.machine.devices)
    reasons = why_stale(kept, here)
    if reasons and kept.machine.node != here.node:
        raise ConfigError(f"the calibration was {reasons[0]}: run `hyrt calibrate`, or name a --platform")
    for reason in reasons:
        typer.echo(f"stale: the calibration was {reason}: run `hyrt calibrate`", err=True)


def _config(
    arguments: Sequence[str], data: str | None, model: str | None, machine: Platform, platform: str
) -> Config:
    """The settings; on this machine `devices` are the trainers that are predicted."""
    from hyrt_perfmodel.platform_file import THIS_MACHINE

    from hyrt.run_settings import new_config, option_overrides, sort_arguments

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
) -> Training:
    if config is not None:
        from hyrt.predicted_training import training_of

        return training_of(config)
    from hyrt_perfmodel.workload_file import load_workload

    from hyrt.errors import ConfigError

    if arguments or data is not None or model is not None:
        raise ConfigError("--workload gives all sizes: leave --data, --model and settings out")
    assert workload is not None
    return load_workload(workload)


def _given(config: Config, machine: Platform, work: Training) -> Assignment | None:
    """The assignment that the settings fix, in part or whole; None where they leave all of it open."""
    from dataclasses import replace

    from hyrt_perfmodel.mapping import initial_assignment

    from hyrt.device_names import split_by_shares

    runtime = config.runtime
    counts = {"sample": runtime.sample_threads, "load": runtime.load_threads, "train": runtime.train_threads}
    fixed = {stage: count for stage, count in counts.items() if count}
    if not fixed and config.split is None:
        return None
    found = initial_assignment(machine, work)
    if fixed:
        found = initial_assignment(machine, work, threads=replace(found.threads, **fixed))
    if config.split is not None:
        found = replace(found, split=tuple(split_by_shares(work.batch_size, config.split)))
    return found


def _on(machine: Platform, work: Training, *, is_file: bool) -> Training:
    """The work on a machine: a workload given in full has a batch for each trainer."""
    from dataclasses import replace

    if not is_file:
        return work
    return replace(work, batch_size=work.batch_size * len(machine.trainers()))


def _lines(now: Prediction, advice: Sequence[Advice]) -> list[str]:
    marked = now.bottleneck
    lines = ["stage        ms a step"]
    for stage, seconds in now.stages.stages_s.items():
        extra = f"  + synchronize {_ms(now.stages.synchronize_s)}" if stage == "propagate" else ""
        shown = seconds - (now.stages.synchronize_s if stage == "propagate" else 0.0)
        lines.append(f"{stage:10} {_ms(shown):>11}{extra}{'  ◀ bottleneck' if stage == marked else ''}")
    if marked == "cores":
        lines.append(
            f"{'cores':10} {_ms(now.iteration_s):>11}  ◀ bottleneck: what the stages need of them together"
        )
    low, high = (now.epoch_s * (1 + sign * now.relative_error) for sign in (-1, 1))
    lines.append(
        f"epoch {_s(now.epoch_s)} ({_s(low)} to {_s(high)}) · {now.iterations:,} steps of {_ms(now.iteration_s)} ms · "
        f"{now.throughput_mteps:,.1f} MTEPS"
    )
    threads = now.assignment.threads
    split = " · ".join(
        f"{name} {units}" for name, units in zip(now.trainers, now.assignment.split, strict=True)
    )
    lines.append(
        f"split {split} · threads sample {threads.sample}, load {threads.load}, train {threads.train}"
    )
    for name, memory in now.memory.items():
        have = "" if memory.have_bytes is None else f" of {memory.have_bytes / 2**30:,.1f}"
        fits = "" if memory.have_bytes is None else ": fits" if memory.fits else ": DOES NOT FIT"
        lines.append(f"memory {name} {memory.need_bytes / 2**30:,.2f} GiB{have}{fits}")
    lines.append(f"ideal, if all trainers' speeds added up: {_s(now.ideal_epoch_s)}")
    if advice:
        lines += [
            f"to go faster: {line.change}: {_s(line.epoch_s)} (then bound by {line.bottleneck})"
            for line in advice
        ]
    else:
        lines.append("to go faster: no single change gives more than a few per cent")
    lines.append(f"sure of this to about ± {now.relative_error:.0%}: {now.platform}, {now.source}")
    return lines


def _scaling_lines(scaling: Sequence[tuple[int, Prediction]]) -> list[str]:
    if not scaling:
        return []
    first = scaling[0][1].epoch_s
    return [
        "",
        "accelerators     epoch  speed-up  bottleneck",
        *(
            f"{count:12} {_s(each.epoch_s):>9} {first / each.epoch_s:8.2f}x  {each.bottleneck}"
            for count, each in scaling
        ),
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}" if seconds < 0.1 else f"{seconds * 1e3:,.0f}"


def _s(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:,.1f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def _draw(scaling: Sequence[tuple[int, Prediction]], path: Path) -> None:
    from hyrt.errors import ConfigError, DataNotWritten

    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError('--plot needs matplotlib: pip install "hyrt[plot]"') from None
    counts = [count for count, _ in scaling]
    first = scaling[0][1].epoch_s
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(counts, [first / each.epoch_s for _, each in scaling], marker="o", label="predicted")
    axes.plot(counts, [count / counts[0] if counts[0] else count for count in counts], "--", label="linear")
    axes.set_xlabel("accelerators")
    axes.set_ylabel(f"speed-up over {counts[0]}")
    axes.set_title(scaling[0][1].platform)
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise DataNotWritten(f"{path}: cannot be drawn: {error}") from error
