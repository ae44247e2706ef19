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
    load_workload_option,
)

if TYPE_CHECKING:
    from hyrt_perfmodel.platform import Platform
    from hyrt_perfmodel.workload import TrainingWorkload

    from hyrt.config import Config
    from hyrt.predict.predict_ranks import RankPredictionRequest, RanksComparison

# With more accelerators, the search for the best split would take seconds.
_MAX_ACCELERATORS = 128


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
            help="The training devices of this-machine, as for hyrt run.",
        ),
    ] = None,
    accelerators: Annotated[
        str | None,
        typer.Option(metavar="N or A..B", help="The number of accelerators, or a range for a scaling table."),
    ] = None,
    paper: Annotated[
        bool,
        typer.Option("--paper", help="Use the performance model exactly as published, with an equal split."),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Plot the scaling table to a file.")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="N", help="The number of machines that train together, all like this one."),
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
            help="The strategy, which determines what machines send: home, hopgnn or p3. By "
            "default, all three.",
        ),
    ] = None,
    locality: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            help="The fraction, from 0 to 1, of the rows needed by a target that are on its machine.",
        ),
    ] = None,
    partition_map: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.npy",
            help="A file with the part of each vertex; sent bytes are then counted instead of estimated.",
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

    from hyrt_perfmodel.platform_file import THIS_MACHINE

    from hyrt.config.command_line import short_option_overrides
    from hyrt.errors import ConfigError, convert_number_errors
    from hyrt.predict.predict_platform import load_machine, predict_platform
    from hyrt.predict.predict_run import run_platform
    from hyrt.report.plots import check_plot, plot_scaling
    from hyrt.report.predict_table import prediction_lines, scaling_lines
    from hyrt.report.printed_lines import print_wrapped

    rank_request = _rank_request(ranks, network, strategy, locality, partition_map)
    if rank_request is not None and (accelerators, plot, paper) != (None, None, False):
        raise ConfigError("--ranks cannot be combined with --accelerators, --plot or --paper: remove them")
    counts = _counts(accelerators)
    if plot is not None and len(counts) < 2:
        raise ConfigError("--plot needs a scaling table: add a range such as --accelerators 1..16")
    if plot is not None:
        check_plot(plot)
    is_this_machine = platform == THIS_MACHINE
    if devices is not None and not is_this_machine:
        raise ConfigError(
            "--devices selects devices of this machine, so it cannot be combined with "
            "--platform: remove one of them"
        )
    with convert_number_errors():
        target, stale = load_machine(platform)
        for reason in stale:
            typer.echo(
                f"warning: the calibration is stale, because it was {reason}: run `hyrt calibrate`", err=True
            )
        words = [*short_option_overrides(epochs, lr, hidden, layers, batch_size, seed), *(arguments or [])]
        work, config = _work(words, data, model, workload, devices, full_graph=full_graph)
        if is_this_machine:
            from hyrt.predict.choose_devices import resolve_auto_for

            config = resolve_auto_for(config, work)
            target = run_platform(config, target)
        settings = None if workload is not None else config
        if rank_request is not None:
            if work.resident:
                _print_full_graph(target, work, settings, rank_request, as_json=as_json)
                return
            from hyrt.predict.predict_ranks import predict_on_ranks

            _print_on_ranks(predict_on_ranks(target, work, settings, rank_request), as_json=as_json)
            return
        prediction = predict_platform(
            target, work, settings, is_local=is_this_machine, counts=counts, paper=paper
        )
    if plot is not None:
        plot_scaling(prediction.scaling, plot)
    # The remaining values apply only to a run without chunks.
    chunked = prediction.chunked if prediction.in_chunks else None
    if as_json:
        import json

        facts: dict[str, Any] = {
            **prediction.prediction.to_json(),
            "advice": [
                {"moved" if key == "moved_ratio" else key: value for key, value in asdict(line).items()}
                for line in prediction.advice
            ],
            "choices": prediction.choices,
            "assumptions": prediction.assumptions,
            "stale": stale,
        }
        if prediction.chunked is not None:
            facts["chunks"] = prediction.chunked.to_json()
        if chunked is not None:
            common = {key: facts[key] for key in ("platform", "source", "assumptions", "stale", "chunks")}
            facts = {
                **common,
                "epoch_s": chunked.epoch_s,
                "iteration_s": chunked.epoch_s,
                "relative_error": chunked.relative_error,
            }
        if prediction.scaling:
            facts["scaling"] = [
                {"accelerators": count, **scaled.to_json()} for count, scaled in prediction.scaling
            ]
        typer.echo(json.dumps(facts))
        return
    lines = [
        *prediction.choices,
        *prediction_lines(
            prediction.prediction, prediction.advice, prediction.machine, prediction.assumptions
        ),
    ]
    if chunked is not None:
        source = f"{prediction.prediction.platform}, {prediction.prediction.source}"
        lines = [*chunked.lines(), f"estimated error ± {chunked.relative_error:.0%}: {source}"]
        lines += [f"assumed: {assumption}" for assumption in prediction.assumptions]
    elif prediction.chunked is not None:
        lines += prediction.chunked.lines()
    if prediction.scaling:
        lines += ["", *scaling_lines(prediction.scaling)]
    print_wrapped(lines, also_in_pipes=True)


def _rank_request(
    ranks: int | None,
    network: str | None,
    strategy: str | None,
    locality: float | None,
    homes: Path | None,
) -> RankPredictionRequest | None:
    """Return the request for a prediction of several ranks; None for a single process."""
    from hyrt.errors import ConfigError

    if ranks is None:
        rank_options = {
            "--network": network,
            "--strategy": strategy,
            "--locality": locality,
            "--partition-map": homes,
        }
        used = [name for name, value in rank_options.items() if value is not None]
        if used:
            raise ConfigError(
                f"{used[0]} has no effect on a single machine: specify the number of machines with --ranks"
            )
        return None
    from hyrt.predict.predict_ranks import RankPredictionRequest

    return RankPredictionRequest(
        ranks=ranks,
        network_name=network or "10gbit",
        strategy_name=strategy,
        locality=locality,
        homes=homes,
    )


def _print_on_ranks(comparison: RanksComparison, *, as_json: bool) -> None:
    from hyrt.report.predict_table import ranks_lines
    from hyrt.report.printed_lines import print_wrapped

    if as_json:
        import json

        typer.echo(json.dumps(comparison.to_json()))
    else:
        print_wrapped(ranks_lines(comparison), also_in_pipes=True)


def _print_full_graph(
    platform: Platform,
    work: TrainingWorkload,
    config: Config | None,
    rank_request: RankPredictionRequest,
    *,
    as_json: bool,
) -> None:
    from hyrt.errors import ConfigError
    from hyrt.predict.distributed_full_graph import predict_full_graph
    from hyrt.report.predict_table import full_graph_lines
    from hyrt.report.printed_lines import print_wrapped

    if config is None:
        raise ConfigError(
            "--full-graph needs a graph to count the bytes between ranks: use --data instead of --workload"
        )
    unsupported = {"--strategy": rank_request.strategy_name, "--locality": rank_request.locality}
    for name, value in unsupported.items():
        if value is not None:
            raise ConfigError(f"{name} has no effect with --full-graph: remove one of them")

    def print_progress(line: str) -> None:
        typer.echo(line, err=True)

    prediction = predict_full_graph(
        platform, work, config, rank_request.ranks, rank_request.network, rank_request.homes, print_progress
    )
    if as_json:
        import json

        typer.echo(json.dumps(prediction.to_json()))
    else:
        print_wrapped(full_graph_lines(prediction), also_in_pipes=True)


def _counts(text: str | None) -> list[int]:
    from hyrt.errors import ConfigError
    from hyrt.formatting import parse_int

    if text is None:
        return []
    first, dots, last = text.partition("..")
    low, high = parse_int(first), parse_int(last if dots else first)
    counts = range(0) if low is None or high is None else range(low, high + 1)
    if not counts or counts[-1] > _MAX_ACCELERATORS:
        raise ConfigError(
            f"--accelerators {text} must be a number such as 4, or a range such as 1..16, of at most "
            f"{_MAX_ACCELERATORS}"
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
    """Return the workload and its settings. With `--workload`, the settings contain only the devices."""
    from hyrt.config.command_line import full_graph_override, new_config, option_overrides, split_arguments
    from hyrt.predict.workload import configured_workload

    if workload is not None:
        work = load_workload_option(
            workload, arguments, {"data": data, "model": model, "full-graph": full_graph or None}
        )
        return work, new_config(None, option_overrides(devices=devices))
    file, overrides = split_arguments(arguments)
    options = option_overrides(data__source=data, model__kind=model, devices=devices)
    if full_graph:
        options.append(full_graph_override(overrides))
    config = new_config(file, [*options, *overrides])
    return configured_workload(config), config
