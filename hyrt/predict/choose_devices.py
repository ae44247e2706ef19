"""Implementation of `--devices auto`, and division of a full graph among devices by measured rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from hyrt_perfmodel.degrees import DegreeDistribution
from hyrt_perfmodel.platform import Host, Platform, PlatformTrainer
from hyrt_perfmodel.platform_file import Calibration
from hyrt_perfmodel.policy import Threads
from hyrt_perfmodel.prediction.stage_times import StepModel
from hyrt_perfmodel.prediction.stages import ExtraTerms
from hyrt_perfmodel.workload import TrainingWorkload

from hyrt.balance.registry import DEFAULT_POLICY
from hyrt.config import Config
from hyrt.device import DeviceInfo, DeviceOptions
from hyrt.device.calls import call_device, load_replica, opened
from hyrt.device.discovery import AUTO, ProbeResult, find_device, survey_devices
from hyrt.errors import ConfigError, DataWriteError, DeviceFaultError, DeviceUnavailableError, describe_error
from hyrt.nn.models.model_kind import find_model
from hyrt.objective import Objective
from hyrt.predict.calibrate.machine import measure_devices
from hyrt.predict.calibrate.store import (
    device_speed,
    read_measured,
    real_devices,
    save_calibration,
    usable_calibration,
)
from hyrt.predict.chunk_prediction import PredictedDeviceGroup, configured_trainers
from hyrt.predict.chunked_work import ChunkedWork
from hyrt.predict.dataset_sizes import SamplerSizesUnknownError, graph_sizes
from hyrt.predict.predict_run import run_platform
from hyrt.predict.step_dry_run import model_for_widths
from hyrt.predict.workload import check_predictable, expected_workload, sampled_workload
from hyrt.training.setup import PreparedRun

# Minimum share of a step: for a smaller share, feeding the device costs more than the device contributes.
_MIN_SHARE = 0.05
_NOT_MEASURED = "its rates are unknown: run `hyrt devices --measure`"


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Result of `--devices auto`."""

    devices: tuple[str, ...]
    """Selected devices, as entries `name=share` of the settings."""
    unused: tuple[tuple[str, str], ...]
    """Pairs (name, reason) of the devices that were not selected."""


def resolve_auto(config: Config, prepared: PreparedRun) -> tuple[Config, DeviceChoice | None]:
    """Replace `devices: auto` in the settings with the selected devices.

    Objects of `prepared` that are built here are reused by the run. Raises DeviceUnavailableError, with every
    device's reason, if no device can train.
    """
    if config.device_requests[0].name != AUTO:
        return config, None
    return _resolved(
        config, lambda: prepared.model, lambda: prepared.objective, lambda: known_work(config, prepared)
    )


def resolve_auto_for(config: Config, work: TrainingWorkload) -> Config:
    """Replace `devices: auto` as `resolve_auto` does, for work whose graph is not open."""
    if config.device_requests[0].name != AUTO:
        return config
    widths = work.at(1.0).features
    objective = config.build_objective(None)
    return _resolved(
        config, lambda: model_for_widths(config, widths[0], widths[-1]), lambda: objective, lambda: work
    )[0]


def _resolved(
    config: Config,
    model_of: Callable[[], torch.nn.Module],
    objective_of: Callable[[], Objective],
    work_of: Callable[[], TrainingWorkload],
) -> tuple[Config, DeviceChoice]:
    surveys = survey_devices()
    calibration, work, unknown_reason = read_measured(), None, _NOT_MEASURED
    candidates = real_devices(surveys)
    model_kind = find_model(config.model.kind).costs_like
    if model_kind and any(not info.host_cores for info in candidates):
        # Measure the CPU only if it has to be compared with another device.
        calibration = _with_cpu(candidates, calibration, model_kind)
        try:
            work = work_of()
        except ConfigError as error:
            unknown_reason = f"its speed in this run is unknown: {error}"
    choice = choose_devices(
        surveys,
        lambda info: _step_s(info, calibration, model_kind, work),
        lambda info: _unsupported_reason(info, model_of(), objective_of()),
        unknown_reason,
        only_fastest=config.sampler.is_full_graph,
    )
    balance = config.balance
    if balance.policy == "auto" and not config.sampler.is_full_graph:
        # Unlike shares in the settings, selected shares are a starting point that the policy may change.
        balance = balance.model_copy(update={"policy": DEFAULT_POLICY})
    return config.model_copy(update={"devices": list(choice.devices), "balance": balance}), choice


def choose_devices(
    surveys: Sequence[ProbeResult],
    step_s: Callable[[DeviceInfo], float | None],
    unsupported_reason: Callable[[DeviceInfo], str],
    unknown_reason: str = _NOT_MEASURED,
    *,
    only_fastest: bool = False,
) -> DeviceChoice:
    """Select the CPU and every suitable device that is not simulated, with their shares.

    A suitable device can run the model, does not share the CPU's cores, and is fast enough for at least a
    twentieth of a step. Shares are proportional to speeds: `step_s` returns the time in seconds of a whole
    step on one device, or None if it is unknown. `unsupported_reason` returns "" for a device that can run
    the model. With `only_fastest` (full-graph training on one device), only one device is selected. Raises
    DeviceUnavailableError, with every device's reason, if no device can train.
    """
    speeds: dict[str, float] = {}
    unused: list[tuple[str, str]] = []
    for info in real_devices(surveys):
        if info.kind == "cpu":
            # If the CPU's speed is unknown, the CPU is the only device: it is measured whenever another
            # device's speed is known.
            speeds[info.name] = 1 / (step_s(info) or 1.0)
            continue
        seconds = None if info.host_cores else step_s(info)
        if info.host_cores:
            reason = "shares the CPU"
        else:
            reason = unknown_reason if seconds is None else unsupported_reason(info)
        if only_fastest and not info.whole_graphs:
            reason = "trains mini-batches only"
        if reason or seconds is None:
            unused.append((info.name, reason))
        else:
            speeds[info.name] = 1 / seconds
    if not speeds:
        reasons = [f"{name}: {reason}" for name, reason in unused]
        reasons += [f"{survey.kind}: {survey.problem}" for survey in surveys if survey.problem]
        raise DeviceUnavailableError(f"devices=auto found no device that can train: {'; '.join(reasons)}")
    if only_fastest:
        best = max(speeds, key=speeds.__getitem__)
        unused += [(name, f"slower than {best}") for name in speeds if name != best]
        return DeviceChoice((best,), tuple(unused))
    total = sum(speeds.values())
    for name, speed in list(speeds.items()):
        if speed < _MIN_SHARE * total and not name.startswith("cpu:"):
            unused.append((name, f"too slow: {speed / total:.1%} of the total speed"))
            del speeds[name]
    if len(speeds) == 1:
        return DeviceChoice(tuple(speeds), tuple(unused))
    largest = max(speeds.values())
    return DeviceChoice(
        tuple(f"{name}={speed / largest:.3g}" for name, speed in speeds.items()), tuple(unused)
    )


def _with_cpu(
    candidates: Sequence[DeviceInfo], calibration: Calibration | None, kind: str
) -> Calibration | None:
    """Return the calibration, after measuring the CPU if its speed with the model kind is unknown."""
    cpu = [info for info in candidates if info.kind == "cpu"]
    for info in cpu:
        speed = device_speed(info, calibration, kind)
        if (
            speed.trainer is None
            or speed.not_used
            or (calibration and kind not in calibration.platform.host.models)
        ):
            calibration, _ = measure_devices(cpu, kinds=[kind])
            try:
                save_calibration(calibration)
            except DataWriteError:
                pass  # The measurement cannot be saved, so the next run repeats it.
    return calibration


def _step_s(
    info: DeviceInfo, calibration: Calibration | None, model: str, work: TrainingWorkload | None
) -> float | None:
    """Return the time in seconds of a whole step on one device, or None if it is unknown."""
    trainer = device_speed(info, calibration, model).trainer
    return None if trainer is None or work is None else whole_step_s(trainer, work)


def whole_step_s(trainer: PlatformTrainer, work: TrainingWorkload) -> float:
    """Return the time in seconds of a whole step on one trainer, which overlaps transfer and computation.

    A host trainer computes with all cores.
    """
    host = Host(memory_gb_s=1.0, macs_per_s=1.0)
    # Include aggregation in training, although the load stage could do it. Sparse rows stay sparse.
    model = StepModel(Platform(name="one trainer", host=host), work, ExtraTerms(load_forms=False))
    step, threads = work.at(float(work.batch_size)), Threads(sample=1, load=1, train=1)
    computing = model.propagate_s(replace(trainer, is_host=False), step, threads)
    return max(model.transfer_s(trainer, step), computing)


def known_work(config: Config, prepared: PreparedRun) -> TrainingWorkload:
    """Return the work of a run: from samples, or from expected sizes if sampling is expensive.

    Raises ConfigError with the reason if the work is unknown.
    """
    graph, targets = prepared.graph, prepared.targets
    if len(targets) and config.sampler.preparation:
        degrees = DegreeDistribution.assumed(graph.num_vertices, graph.num_edges)
        with suppress(SamplerSizesUnknownError):
            return expected_workload(config, replace(graph_sizes(graph, targets), degrees=degrees))
    check_predictable(config)
    return sampled_workload(config, graph, prepared.sampler)


def _unsupported_reason(info: DeviceInfo, model: torch.nn.Module, objective: Objective) -> str:
    """Load the model on the device, and return the reason if that fails, or ""."""
    try:
        backend, found = find_device(info.name)
        with opened(backend, found, DeviceOptions()) as device:
            trainable = [p for p in model.parameters() if p.requires_grad]
            call_device(
                info.name,
                "load",
                lambda: load_replica(device, model, trainable, objective),
                fault=DeviceFaultError,
            )
    except Exception as error:  # A plug-in may raise any exception, which must not stop the run.
        return " ".join(describe_error(error).split()).removeprefix(f"{info.name}: ")
    return ""


def share_columns(config: Config, prepared: PreparedRun) -> tuple[Config, str]:
    """Set the devices' shares of a full graph to their individual speeds, except in a resumed run.

    Settings that contain shares or `balance.predict=false`, and settings of other runs, do not change.
    Returns the settings, and the origin of the shares or the reason why there are none ("" for other runs).
    """
    is_team = config.sampler.is_full_graph and len(config.training_requests) > 1
    if not is_team or config.has_explicit_split or not config.balance.predict or prepared.is_custom_module:
        return config, ""
    calibration, reason = usable_calibration()
    equal = "every device gets the same number of chunk columns"
    if calibration is None:
        reason = reason or "nothing was measured: run `hyrt calibrate --all`"
        return config, f"{equal}, because {reason.removeprefix('the ')}"
    try:
        platform = run_platform(config, calibration.platform)
        work = sampled_workload(config, prepared.graph, prepared.sampler)
    except ConfigError as error:
        return config, f"{equal}, because {error}"
    trainers, _ = configured_trainers(platform, work, config)
    chunked = ChunkedWork.from_config(work, config, trainers[-1].device.kind)
    team = (
        None
        if chunked is None
        else PredictedDeviceGroup.from_config(chunked, trainers, platform.host, config)
    )
    if team is None:
        return config, ""
    shares = dict(zip((trainer.name for trainer in trainers), team.shares, strict=True))
    devices = [f"{name}={share:.3g}" for name, share in shares.items()]
    text = f"chunk columns are distributed by measured rates: {', '.join(devices)}"
    return config.model_copy(update={"devices": devices}), text
