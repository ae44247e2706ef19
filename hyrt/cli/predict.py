"""`hyrt predict`: predict how long training takes, before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyrt.cli.options import (
    AsJson,
    BatchSize,
    Data,
    Epochs,
    FullGraph,
    Hidden,
    Layers,
    LearningRate,
    Model,
    Seed,
    Settings,
    Workload,
    workload_alone,
)

if TYPE_CHECKING:
    from hyrt_perfmodel.platforms.platform import Platform
    from hyrt_perfmodel.workloads.workload import TrainingWorkload

    from hyrt.config import Config
    from hyrt.predict.ranks.on_ranks import RanksComparison, RanksQuestion

# The search for the best split takes seconds with more.
_MOST_ACCELERATORS = 128


def predict(
    arguments: Settings = None,
    data: Data = None,
    model: Model = None,
    full_graph: FullGraph = False,
    epochs: Epochs = None,
    lr: LearningRate = None,
    hidden: Hidden = None,
    layers: Layers = None,
    batch_size: BatchSize = None,
    seed: Seed = None,
    workload: Workload = None,
    platform: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The machine: this-machine, a .yaml file, or a built-in name such as h200, a100, 8x-p100 or "
            "2x-epyc7763-4x-a5000.",
        ),
    ] = "this-machine",
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="The devices of this-machine that train, as for hyrt run.",
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
        Path | None, typer.Option(metavar="FILE.png", help="Plot the scaling table to a file.")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="N", help="The number of machines like this one that train together."),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The network between the machines: 10gbit (the default), 200mbit, or a .yaml file.",
        ),
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The strategy, which decides what machines send: home, hopgnn, p3; all by default.",
        ),
    ] = None,
    locality: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="The fraction, from 0 to 1, of the rows that a target needs which are on the target's "
            "machine.",
        ),
    ] = None,
    homes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy",
            help="A file with the part of each vertex: what is sent is then counted, not estimated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict how long training takes.

    This prints the times of the stages, the bottleneck, the best assignment, the epoch time and the memory,
    from the performance model. Nothing is trained, and named and generated datasets are not loaded. To apply
    a trained model, use `hyrt infer`.

    \b
    Examples:
      hyrt predict
      hyrt predict --data ogbn-papers100M --model graphsage --platform 2x-epyc7763-4x-a5000
      hyrt predict --workload w.yaml --platform p.yaml --paper --json
      hyrt predict --data ogbn-products --platform 2x-epyc7763-4x-u250 --accelerators 1..16
      hyrt predict --data ogbn-products --platform h200 --ranks 4 --network 10gbit --locality 0.9
    """  # noqa: D301
    from dataclasses import asdict

    from hyrt_perfmodel.platforms.platform_file import THIS_MACHINE

    from hyrt.config.command_line import short_forms
    from hyrt.errors import ConfigError, numbers_named
    from hyrt.predict.any_machine import machine, predict_on
    from hyrt.predict.this_run import devices_of
    from hyrt.report.plots.plot_file import check_plot
    from hyrt.report.plots.scaling_plot import plot_scaling
    from hyrt.report.tables.predict_table import prediction_lines, scaling_lines
    from hyrt.report.terminal.printed_lines import print_wrapped

    question = _question(ranks, network, strategy, locality, homes)
    if question is not None and (accelerators, plot, paper) != (None, None, False):
        raise ConfigError("--ranks cannot be combined with --accelerators, --plot or --paper: omit them")
    counts = _counts(accelerators)
    if plot is not None and len(counts) < 2:
        raise ConfigError("--plot plots the scaling table: give a range, such as --accelerators 1..16")
    if plot is not None:
        check_plot(plot)
    here = platform == THIS_MACHINE
    if devices is not None and not here:
        raise ConfigError("--devices chooses among the devices of this machine: omit --devices or --platform")
    with numbers_named():
        there, stale = machine(platform)
        for reason in stale:
            typer.echo(
                f"warning: the calibration is stale, because it was {reason}: run `hyrt calibrate`", err=True
            )
        words = [*short_forms(epochs, lr, hidden, layers, batch_size, seed), *(arguments or [])]
        work, config = _work(words, data, model, workload, devices, full_graph=full_graph)
        if here:
            from hyrt.predict.choose_devices import resolve_auto_for

            config = resolve_auto_for(config, work)
            there = devices_of(config, there)
        settings = None if workload is not None else config
        if question is not None:
            if work.resident:
                _print_full_graph(there, work, settings, question, as_json=as_json)
                return
            from hyrt.predict.ranks.on_ranks import predict_on_ranks

            _print_on_ranks(predict_on_ranks(there, work, settings, question), as_json=as_json)
            return
        found = predict_on(there, work, settings, here=here, counts=counts, paper=paper)
    if plot is not None:
        plot_scaling(found.scaling, plot)
    # What else is known is of a run without chunks.
    alone = found.chunked if found.in_chunks else None
    if as_json:
        import json

        facts: dict[str, Any] = {
            **found.now.to_json(),
            "advice": [asdict(line) for line in found.advice],
            "choices": found.choices,
            "assumptions": found.assumptions,
            "stale": stale,
        }
        if found.chunked is not None:
            facts["chunks"] = found.chunked.to_json()
        if alone is not None:
            kept = {key: facts[key] for key in ("platform", "source", "assumptions", "stale", "chunks")}
            facts = {
                **kept,
                "epoch_s": alone.epoch_s,
                "iteration_s": alone.epoch_s,
                "relative_error": alone.relative_error,
            }
        if found.scaling:
            facts["scaling"] = [{"accelerators": count, **each.to_json()} for count, each in found.scaling]
        typer.echo(json.dumps(facts))
        return
    lines = [
        *found.choices,
        *prediction_lines(found.now, found.advice, found.machine, found.assumptions),
    ]
    if alone is not None:
        source = f"{found.now.platform}, {found.now.source}"
        lines = [*alone.lines(), f"estimated error ± {alone.relative_error:.0%}: {source}"]
        lines += [f"assumed: {assumption}" for assumption in found.assumptions]
    elif found.chunked is not None:
        lines += found.chunked.lines()
    if found.scaling:
        lines += ["", *scaling_lines(found.scaling)]
    print_wrapped(lines, also_in_pipes=True)


def _question(
    ranks: int | None,
    network: str | None,
    strategy: str | None,
    locality: float | None,
    homes: Path | None,
) -> RanksQuestion | None:
    """What is asked of several ranks; None where nothing is."""
    from hyrt.errors import ConfigError

    if ranks is None:
        given = {"--network": network, "--strategy": strategy, "--locality": locality, "--homes": homes}
        alone = [name for name, value in given.items() if value is not None]
        if alone:
            raise ConfigError(f"{alone[0]} is for several machines: give their number with --ranks")
        return None
    from hyrt.predict.ranks.on_ranks import RanksQuestion

    return RanksQuestion(
        ranks=ranks,
        network_name=network or "10gbit",
        strategy_name=strategy,
        locality=locality,
        homes=homes,
    )


def _print_on_ranks(found: RanksComparison, *, as_json: bool) -> None:
    from hyrt.report.tables.ranks_table import ranks_lines
    from hyrt.report.terminal.printed_lines import print_wrapped

    if as_json:
        import json

        typer.echo(json.dumps(found.to_json()))
    else:
        print_wrapped(ranks_lines(found), also_in_pipes=True)


def _print_full_graph(
    platform: Platform,
    work: TrainingWorkload,
    config: Config | None,
    question: RanksQuestion,
    *,
    as_json: bool,
) -> None:
    from hyrt.errors import ConfigError
    from hyrt.predict.ranks.full_graph_on_ranks import predict_full_graph
    from hyrt.report.tables.full_graph_table import full_graph_lines
    from hyrt.report.terminal.printed_lines import print_wrapped

    if config is None:
        raise ConfigError("--full-graph counts what ranks send on a graph: give --data instead of --workload")
    given = {"--strategy": question.strategy_name, "--locality": question.locality}
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} is for mini-batches: omit it, or omit --full-graph")

    def say(line: str) -> None:
        typer.echo(line, err=True)

    found = predict_full_graph(platform, work, config, question.ranks, question.network, question.homes, say)
    if as_json:
        import json

        typer.echo(json.dumps(found.to_json()))
    else:
        print_wrapped(full_graph_lines(found), also_in_pipes=True)


def _counts(text: str | None) -> list[int]:
    from hyrt.errors import ConfigError
    from hyrt.quantities import whole_number

    if text is None:
        return []
    first, dots, last = text.partition("..")
    low, high = whole_number(first), whole_number(last if dots else first)
    counts = range(0) if low is None or high is None else range(low, high + 1)
    if not counts or counts[-1] > _MOST_ACCELERATORS:
        raise ConfigError(
            f"--accelerators {text}: give a number such as 4, or a range such as 1..16, of at most "
            f"{_MOST_ACCELERATORS}"
        )
    return list(counts)


def _work(
    arguments: Sequence[str],
    data: str | None,
    model: str | None,
    workload: Path | None,
    devices: str | None,
    *,
    full_graph: bool,
) -> tuple[TrainingWorkload, Config]:
    """The work, and the settings it follows from; where it is given in sizes, these name the devices only."""
    from hyrt.config.command_line import full_graph_override, new_config, option_overrides, sort_arguments
    from hyrt.predict.workload import configured_workload

    if workload is not None:
        work = workload_alone(
            workload, arguments, {"data": data, "model": model, "full-graph": full_graph or None}
        )
        return work, new_config(None, option_overrides(devices=devices))
    file, overrides = sort_arguments(arguments)
    options = option_overrides(data__source=data, model__kind=model, devices=devices)
    if full_graph:
        options.append(full_graph_override(overrides))
    config = new_config(file, [*options, *overrides])
    return configured_workload(config), config
