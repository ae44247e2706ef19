"""`--devices auto`: which of the machine's devices train, and with what shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from hyrt_perfmodel.prediction.stages import load_s, trainer_s
from hyrt_perfmodel.workloads.workload import Workload

from hyrt.balance.policies import default_policy_name
from hyrt.config import Config
from hyrt.device import DeviceInfo, DeviceOptions, Rates
from hyrt.device.calls import load_replica, opened
from hyrt.device.discovery import Survey, find_device, survey_devices
from hyrt.device.names import AUTO
from hyrt.device.rates import MeasuredRates, known_rates, rates_file, read_rates, write_rates
from hyrt.errors import DataNotWritten, DeviceUnavailable, describe
from hyrt.graph.graph import Graph
from hyrt.machine.cores import available_cores
from hyrt.machine.workers import Workers
from hyrt.objective import Objective
from hyrt.predict.measure_rates import measure_rates
from hyrt.training.setup import build_model, build_sampler

# A device that would do less than this part of a step costs more to feed than it gives.
_WORTH = 0.05


@dataclass(frozen=True, slots=True)
class Choice:
    """What auto decided.

    Parameters
    ----------
    devices
        Entries `name=share` for the settings.
    unused
        Devices that were found and not taken: (name, reason).
    """

    devices: tuple[str, ...]
    unused: tuple[tuple[str, str], ...]


def resolve_auto(
    config: Config, graph: Graph, model: torch.nn.Module | None = None
) -> tuple[Config, Choice | None]:
    """Settings with `devices: auto` replaced by what it stands for here; others unchanged.

    Parameters
    ----------
    config
        All settings.
    graph
        To be trained on.
    model
        A module of the user's; the configured one by default.

    Raises
    ------
    DeviceUnavailable
        If no device can train, with every device's reason.
    """
    if config.device_requests[0].name != AUTO:
        return config, None
    module = build_model(config, graph) if model is None else model
    surveys = survey_devices()
    choice = choose(
        surveys,
        _with_cpu(surveys, read_rates(rates_file())),
        lambda info: _why_not(info, module, config.train.build_objective()),
        _workload(config, graph),
    )
    balance = config.balance
    if balance.policy == "auto":
        # The shares are a start that nobody asked to keep.
        balance = balance.model_copy(update={"policy": default_policy_name})
    return config.model_copy(update={"devices": list(choice.devices), "balance": balance}), choice


def choose(
    surveys: Sequence[Survey],
    measured: Mapping[str, MeasuredRates],
    why_not: Callable[[DeviceInfo], str],
    workload: Workload | None,
) -> Choice:
    """Choose among what was found.

    The CPU always trains. Every other real device does that can run the model, has cores of its own, and is fast enough
    to do at least a twentieth of a step. Shares are proportional to how fast each would do the whole step alone.

    Parameters
    ----------
    surveys
        What every backend found.
    measured
        Rates by device name; the CPU's too where there is an accelerator to compare it with.
    why_not
        Says why a device cannot run the model; empty where it can.
    workload
        Of one step; None where only the rate of products is to count.

    Raises
    ------
    DeviceUnavailable
        If no device can train, with every device's reason.
    """
    speeds: dict[str, float] = {}
    unused: list[tuple[str, str]] = []
    for info in _candidates(surveys):
        rates, _ = known_rates(info, measured)
        if info.kind == "cpu":
            # Without rates it is alone: see below.
            speeds[info.name] = 1 / _step_s(rates, workload) if rates is not None else 1.0
            continue
        reason = _unfit(info, rates) or why_not(info)
        if reason or rates is None:
            unused.append((info.name, reason))
        else:
            speeds[info.name] = 1 / _step_s(rates, workload)
    if not speeds:
        reasons = [f"{name}: {reason}" for name, reason in unused]
        reasons += [f"{survey.kind}: {survey.problem}" for survey in surveys if survey.problem]
        raise DeviceUnavailable(f"devices=auto found no device that can train: {'; '.join(reasons)}")
    assert len(speeds) == 1 or all(
        known_rates(i, measured)[0] for i in _candidates(surveys) if i.name in speeds
    )
    total = sum(speeds.values())
    for name, speed in list(speeds.items()):
        if speed < _WORTH * total and not name.startswith("cpu:"):
            unused.append((name, f"too slow: {speed / total:.1%} of the speed of all together"))
            del speeds[name]
    if len(speeds) == 1:
        return Choice(tuple(speeds), tuple(unused))
    largest = max(speeds.values())
    return Choice(tuple(f"{name}={speed / largest:.3g}" for name, speed in speeds.items()), tuple(unused))


def _candidates(surveys: Sequence[Survey]) -> list[DeviceInfo]:
    """All real devices; the CPU's cores once."""
    found = [info for survey in surveys for info in survey.found if not info.simulated]
    return [info for info in found if info.kind != "cpu" or info.index == 0]


def _with_cpu(surveys: Sequence[Survey], measured: Mapping[str, MeasuredRates]) -> dict[str, MeasuredRates]:
    """The measured rates; with the CPU's measured now, where an accelerator is to be compared with it."""
    rates = dict(measured)
    candidates = _candidates(surveys)
    if all(info.host_cores for info in candidates):
        return rates
    for info in candidates:
        if info.kind == "cpu" and known_rates(info, rates)[0] is None:
            backend, there = find_device(info.name)
            rates[info.name] = measure_rates(backend, there, available_cores())
            try:
                write_rates(rates_file(), {info.name: rates[info.name]})
            except DataNotWritten:
                pass  # It costs the next run a second measurement, and nothing else.
    return rates


def _unfit(info: DeviceInfo, rates: Rates | None) -> str:
    if info.host_cores:
        return "shares the CPU"
    if rates is None:
        return "its rates are unknown: run `hyrt devices --measure`"
    return ""


def _step_s(rates: Rates, workload: Workload | None) -> float:
    """Seconds for a whole step alone: its transfer and its computing overlap."""
    if workload is None:
        return 1 / rates.macs_per_s
    computing = trainer_s(workload, rates.memory_bytes_per_s, rates.macs_per_s)
    return max(load_s(workload, rates.link_bytes_per_s), computing)


def _why_not(info: DeviceInfo, model: torch.nn.Module, objective: Objective) -> str:
    """Try the model on the device; whatever it raises is the reason against it."""
    try:
        backend, there = find_device(info.name)
        with opened(backend, there, DeviceOptions()) as device:
            trainable = [p for p in model.parameters() if p.requires_grad]
            load_replica(device, model, trainable, objective)
    except Exception as error:  # Also a plug-in's own: what auto cannot use does not stop the run.
        return " ".join(describe(error).split()).removeprefix(f"{info.name}: ")
    return ""


def _workload(config: Config, graph: Graph) -> Workload | None:
    """The sizes of the first step, by sampling it."""
    if config.sampler.unpredictable or config.model.kind == "gat":
        return None
    targets = graph.split("train", config.data.split)
    if not len(targets):
        return None
    sampler = build_sampler(config, graph, targets)
    with Workers(1, "hyrt.choose") as workers:
        batch = sampler.sample(0, sampler.units(0), workers, in_place=False)
        sizes = [(block.num_src, block.num_dst, block.num_edges) for block in batch.blocks]
        batch.release()
    model = config.model
    return Workload(
        vertices=(sizes[0][0], *(destinations for _, destinations, _ in sizes)),
        edges=tuple(edges for _, _, edges in sizes),
        features=(graph.num_features, *[model.hidden] * (model.layers - 1), graph.num_classes),
        concat=model.kind == "graphsage",
    )
