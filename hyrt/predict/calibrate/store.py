"""Store of measured speeds in one calibration file per machine, and checks of its validity.

`hyrt calibrate` measures the whole machine, and `hyrt devices --measure` only its devices.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from hyrt_perfmodel.platform import Accelerator, PlatformTrainer, TrainerRates
from hyrt_perfmodel.platform_file import (
    Calibration,
    CalibrationError,
    Machine,
    calibration_file,
    device_mismatch,
    format_calibration,
    machine_mismatches,
    read_calibration,
    staleness_reasons,
)

from hyrt.device import DeviceInfo, Rates
from hyrt.device.discovery import ProbeResult, survey_devices
from hyrt.errors import DataWriteError
from hyrt.runtime.files import write_atomically
from hyrt.runtime.hardware import processor_name, shared_cores

_PACKAGES = ("hyrt", "torch", "numba", "numpy")


def describe_machine(devices: Mapping[str, str]) -> Machine:
    """Describe this machine and its `devices` (descriptions by name), to validate a calibration."""
    return Machine(
        node=platform.node(),
        processor=processor_name() or "unknown",
        cores=shared_cores(),
        versions={name: metadata.version(name) for name in _PACKAGES},
        devices=dict(devices),
    )


def real_devices(surveys: Sequence[ProbeResult] | None = None) -> list[DeviceInfo]:
    """Return the devices that may be measured and selected: no simulations, and the CPU only once.

    If `surveys` is None, the backends are queried.
    """
    surveys = survey_devices() if surveys is None else surveys
    found = [info for survey in surveys for info in survey.found if not info.simulated]
    return [info for info in found if info.kind != "cpu" or info.index == 0]


def shares_cores(info: DeviceInfo) -> bool:
    """Return whether a device other than `cpu` uses the CPU's cores, in which case auto never selects it."""
    return info.kind != "cpu" and info.host_cores > 0


def check_writable() -> None:
    """Raise the error of `save_calibration` in advance, before time is spent on measurements."""
    path = calibration_file()
    with _naming_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


@contextmanager
def _naming_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataWriteError(
            f"the measurements cannot be stored in {path} ({error.strerror}): set XDG_CACHE_HOME to a "
            "writable folder"
        ) from error


def save_calibration(calibration: Calibration) -> None:
    """Write a calibration to the user's cache folder; raise DataWriteError if that is not writable."""
    path = calibration_file()
    with _naming_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, format_calibration(calibration).encode())


def usable_calibration() -> tuple[Calibration | None, str]:
    """Return the calibration if its cores and versions match this machine. Devices are not checked.

    Otherwise, return None and the reason, which is empty if there is no calibration.
    """
    if not os.path.exists(calibration_file()):
        return None, ""
    try:
        calibration = read_calibration(require_complete=False)
    except CalibrationError as error:
        return None, str(error)
    if not calibration.is_complete:
        return None, ""
    reasons = machine_mismatches(calibration, describe_machine({}))
    if reasons:
        return None, f"the calibration was {reasons[0]}: run `hyrt calibrate`"
    return calibration, ""


def stored_calibration(devices: list[DeviceInfo] | None = None) -> tuple[Calibration | None, list[str]]:
    """Return this machine's calibration, and the reasons why it is missing or incomplete.

    If `devices` is None, they are discovered. The reasons are empty for a valid calibration.
    """
    try:
        calibration = read_calibration()
    except CalibrationError as error:
        return None, [str(error)]
    found = real_devices() if devices is None else devices
    measured = calibration.machine.devices
    # Devices that share the CPU's cores are expected only if they were measured, which takes a request.
    expected = [info for info in found if info.name in measured or not shares_cores(info)]
    here = describe_machine({info.name: info.description for info in expected})
    return calibration, staleness_reasons(calibration, here)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpeed:
    """Speed of a device, as far as it is known."""

    trainer: PlatformTrainer | None
    """Device with its rates, as input of the performance model; None if the rates are unknown."""
    rates: Rates | None
    """Median rates over all model kinds, for display; None if the rates are unknown."""
    not_used: str = ""
    """Reason why an existing measurement was not used, or ""."""


def read_measured() -> Calibration | None:
    """Return this machine's calibration, which may cover only devices, or None if it cannot be read."""
    try:
        return read_calibration(require_complete=False)
    except CalibrationError:
        return None


def device_speed(info: DeviceInfo, calibration: Calibration | None, model: str = "") -> DeviceSpeed:
    """Return the measured speed of a device if it is valid, otherwise the assumed speed.

    If the `model` kind was not measured, the rates of the first measured kind are used.
    """
    not_used = ""
    if calibration is not None and info.name in calibration.machine.devices:
        not_used = _invalid_reason(info, calibration)
        if not not_used:
            return _measured_speed(info, calibration, model)
    rates = info.rates
    if rates is None:
        return DeviceSpeed(trainer=None, rates=None, not_used=not_used)
    assumed = Accelerator(
        kind=info.kind,
        memory_gb_s=rates.memory_bytes_per_s / 1e9,
        macs_per_s=rates.macs_per_s,
        link_gb_s=rates.link_bytes_per_s / 1e9,
    )
    trainer = PlatformTrainer(
        name=info.name,
        device=assumed,
        rates=TrainerRates(memory_gb_s=assumed.memory_gb_s, macs_per_s=assumed.macs_per_s),
    )
    return DeviceSpeed(trainer=trainer, rates=rates, not_used=not_used)


def _invalid_reason(info: DeviceInfo, calibration: Calibration) -> str:
    here = describe_machine({info.name: info.description})
    reasons = [*machine_mismatches(calibration, here), device_mismatch(calibration, here, info.name)]
    return next((f"measurement {reason}" for reason in reasons if reason), "")


def _measured_speed(info: DeviceInfo, calibration: Calibration, model: str) -> DeviceSpeed:
    platform = calibration.platform
    if info.kind == "cpu":
        trainer, models = platform.trainers(model)[0], platform.host.models
    else:
        accelerator = accelerators_by_name(calibration)[info.name]
        alone = replace(platform, host=replace(platform.host, trains=False), accelerators=(accelerator,))
        trainer, models = alone.trainers(model)[0], accelerator.models
    reached = calibration.measured.get("devices", {}).get(info.name, {})
    macs_per_s = _typical_rate([rates.macs_per_s for rates in models.values()], reached.get("macs_per_s"))
    memory_bytes_per_s = _typical_rate(
        [rates.memory_bytes_per_s for rates in models.values()], reached.get("memory_bytes_per_s")
    )
    rates = info.rates
    if macs_per_s and memory_bytes_per_s:
        rates = Rates(
            macs_per_s=macs_per_s,
            memory_bytes_per_s=memory_bytes_per_s,
            link_bytes_per_s=trainer.device.link_gb_s * 1e9,
            source=f"measured {reached.get('date', calibration.date)}",
        )
    return DeviceSpeed(trainer=trainer, rates=rates)


def _typical_rate(fitted: Sequence[float], reached: Any) -> float:
    """Return the median of a rate fitted for each model kind, at least the reached rate; 0 without rates.

    If the time of a kind hardly depends on a term, the fitted rate may be too high or infinite.
    """
    finite = [rate for rate in fitted if math.isfinite(rate)]
    minimum = float(reached) if isinstance(reached, int | float) and math.isfinite(reached) else 0.0
    return max(statistics.median(finite), minimum) if finite else minimum


def accelerators_by_name(calibration: Calibration) -> dict[str, Accelerator]:
    """Return the measured accelerators by device name."""
    names = [name for name in calibration.machine.devices if not name.startswith("cpu:")]
    return dict(zip(names, calibration.platform.accelerators, strict=True))
