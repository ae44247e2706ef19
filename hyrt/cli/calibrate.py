"""`hyrt calibrate`: measure this machine for the performance model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyrt.cli.options import AsJson

if TYPE_CHECKING:
    from hyrt_perfmodel.network import FittedNetwork
    from hyrt_perfmodel.platform import TrainerRates
    from hyrt_perfmodel.platform_file import Calibration


def calibrate(
    show: Annotated[
        bool,
        typer.Option(
            "--show", help="Print the stored calibration instead, and check whether it is still valid."
        ),
    ] = False,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also measure other devices that compute on CPU cores, which takes minutes.",
        ),
    ] = False,
    models: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="KIND[,KIND...]",
            help="Instead, add the costs of models with special operations, such as ggcn, to the "
            "stored calibration.",
        ),
    ] = None,
    network: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.yaml",
            help="Under torchrun: measure the network between the ranks instead, and write it to a file.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how fast this machine is.

    `hyrt predict` and `hyrt run` use the result, which is stored in the user's cache folder. This takes about
    a minute on two cores the first time, and longer with more cores and with each accelerator. Do not run
    other programs meanwhile. With --network, processes started by torchrun measure the network between them,
    and write the file for hyrt predict --network FILE.yaml.

    \b
    Examples:
      hyrt calibrate
      hyrt calibrate --show
      hyrt calibrate --model ggcn
      hyrt predict --data synthetic:products-s
      torchrun --nnodes 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m hyrt calibrate --network lan.yaml
    """  # noqa: D301
    from hyrt.errors import ConfigError, DeviceUnavailableError

    if network is not None:
        if show or everything or models:
            raise ConfigError("--network cannot be combined with --show, --all or --model: remove them")
        _calibrate_network(network, as_json=as_json)
        return
    import json
    from dataclasses import asdict

    from hyrt_perfmodel.platform_file import calibration_file, to_plain

    from hyrt.predict.calibrate.machine import calibrate as measure
    from hyrt.predict.calibrate.machine import measure_kinds
    from hyrt.predict.calibrate.store import check_writable, save_calibration, stored_calibration
    from hyrt.runtime.process_setup import prepare_process

    prepare_process()
    if show:
        if everything or models:
            raise ConfigError("--show cannot be combined with --all or --model: remove them")
        calibration, stale = stored_calibration()
        if calibration is None:
            raise DeviceUnavailableError(stale[0])
    else:

        def print_progress(text: str) -> None:
            typer.echo(f"measuring {text} ...", err=True)

        if everything and models:
            raise ConfigError(
                "--model cannot be combined with --all: run hyrt calibrate once with --all, then "
                "once with --model"
            )
        check_writable()
        calibration = (
            measure_kinds(models.split(","), print_progress)
            if models
            else measure(print_progress, everything=everything)
        )
        stale = []
        save_calibration(calibration)
    if as_json:
        typer.echo(
            json.dumps({**to_plain(asdict(calibration)), "stale": stale, "file": str(calibration_file())})
        )
    else:
        for line in _lines(calibration):
            typer.echo(line)
        typer.echo(f"stored in {calibration_file()}")
    for reason in stale:
        typer.echo(
            f"warning: the calibration is stale, because it was {reason}: run `hyrt calibrate`", err=True
        )


def _calibrate_network(file: Path, *, as_json: bool) -> None:
    """Measure the network as one of several ranks; rank 0 prints and writes the result."""
    import json
    from dataclasses import asdict

    from hyrt_perfmodel.network import format_network

    from hyrt.config.run_settings import DistributedConfig
    from hyrt.distributed.launch import launch_info_from_env
    from hyrt.errors import ConfigError, convert_number_errors
    from hyrt.runtime.files import write_atomically
    from hyrt.runtime.process_setup import prepare_process

    launch = launch_info_from_env()
    if launch is None:
        raise ConfigError(
            "--network needs several processes, but only one was started: start torchrun ... "
            f"-m hyrt calibrate --network {file} on every machine"
        )
    prepare_process()
    from hyrt.distributed.context import init_from_launcher
    from hyrt.predict.calibrate.host import measure_network

    with init_from_launcher(timeout_s=DistributedConfig().timeout_s) as ranks:
        if launch.rank == 0:
            destination = _network_file(file)
            typer.echo(f"measuring between {launch.size} ranks ...", err=True)
        with convert_number_errors():
            fitted = measure_network(ranks, file.stem)
        if launch.rank == 0:
            write_atomically(destination, format_network(fitted.network).encode())
            if as_json:
                facts = {**asdict(fitted.network), "errors": fitted.errors, "file": str(file)}
                typer.echo(json.dumps(facts))
            else:
                for line in _network_lines(fitted, file):
                    typer.echo(line)


def _network_file(file: Path) -> Path:
    """Return the file to which the network is written. Only an existing network file is replaced."""
    from hyrt_perfmodel.network import read_network

    from hyrt.errors import ConfigError
    from hyrt.runtime.files import resolve_output_file

    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--network {file} must end in .yaml, because hyrt predict reads it: rename it")
    destination = resolve_output_file(file, replace=True, option="--network")
    if destination.exists():
        try:
            read_network(destination)
        except ValueError as error:
            raise ConfigError(f"{file} exists and is not a network file: choose another --network") from error
    return destination


def _network_lines(fitted: FittedNetwork, file: Path) -> list[str]:
    from hyrt.formatting import format_duration, format_sig3

    network, rate = fitted.network, format_sig3(fitted.network.gb_s)
    errors = ", ".join(f"{operation} {error:.0%}" for operation, error in fitted.errors.items())
    return [
        (
            f"{network.name}: {rate} GB/s each way, {format_duration(network.latency_s)} per "
            f"message; exchanges reach {network.uneven_part:.0%} of the rate"
        ),
        network.source,
        f"median error of the resulting predictions for the measured operations: {errors}",
        f"stored in {file}; to use it: hyrt predict --ranks N --network {file}",
    ]


def _lines(calibration: Calibration) -> list[str]:
    machine, host, measured = calibration.machine, calibration.platform.host, calibration.measured
    lines = [
        f"{machine.processor}, {machine.cores} cores · measured {calibration.date} in "
        f"{calibration.seconds:.0f} s · hyrt {machine.versions['hyrt']}, torch {machine.versions['torch']}",
        "host memory  "
        + " · ".join(f"{name} {rate:.1f} GB/s" for name, rate in measured["memory_gb_s"].items()),
    ]
    fastest = max(host.sampling, key=lambda cost: cost.edges_per_s)
    slowest = min(host.sampling, key=lambda cost: cost.edges_per_s)
    lines.append(
        f"sampling     {slowest.edges_per_s / 1e6:.0f} to {fastest.edges_per_s / 1e6:.0f} M edges/s in "
        f"{len(host.sampling)} cases of graph, mini-batch size and threads"
    )
    lines += _rates("cpu:0", host.models)
    for accelerator in calibration.platform.accelerators:
        lines += _rates(f"{accelerator.kind}:0", accelerator.models)
        if accelerator.link_gb_s != float("inf"):
            lines.append(
                f"{'':12} link {accelerator.link_gb_s:.1f} GB/s, {accelerator.link_latency_s * 1e6:.0f} us"
            )
    lines.append(
        (
            "synchronization per step, waiting for threads, waiting for the interpreter "
            "lock, and CPU efficiency of sampling and loading while training: "
        )
        + ", ".join(
            " ms, ".join(
                f"{1e3 * seconds:.2f}" for seconds in (sharing.step_s, sharing.wait_s, sharing.lock_s)
            )
            + f" ms and {sharing.efficiency:.0%} with {kinds or 'no CPU trainer'}"
            for kinds, sharing in host.sharing_of.items()
        )
    )
    runs = measured["runs"]
    errors = [abs(run["error"]) for run in runs]
    lines.append(
        f"checked against {len(runs)} short training runs: the predicted step times are "
        f"{sum(errors) / len(errors):.1%} off on average, {max(errors):.1%} at worst"
    )
    spread = measured["spread"]
    noisy = [f"{name} {value:.0%}" for name, value in spread.items() if value > 0.1]
    if noisy:
        lines.append(
            f"noisy measurements: {', '.join(noisy)}. If other programs were running, calibrate again"
        )
    lines += [f"{name} was left out: {reason}" for name, reason in measured["left_out"].items()]
    return lines


def _rates(name: str, models: Mapping[str, TrainerRates]) -> list[str]:
    return [
        f"{name if first else '':12} {kind:9} {_rate(2 * rates.macs_per_s, 'GFLOP/s')}"
        f"  aggregation {_rate(rates.memory_gb_s * 1e9, 'GB/s')}  values {_rate(rates.values_per_s, 'G/s')}"
        f"  launch {rates.launch_s * 1e3:.2f} ms"
        for first, (kind, rates) in zip([True, *[False] * len(models)], models.items(), strict=False)
    ]


def _rate(per_s: float, unit: str) -> str:
    """Format a rate in units of 1e9. If the measurements do not depend on this rate, it is unknown."""
    return f"{'hidden' if per_s == float('inf') else f'{per_s / 1e9:.1f} {unit}':>13}"
