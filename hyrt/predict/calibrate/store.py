"""The one store of measured speeds: a file a machine, and the judgement whether it still holds.

`hyrt calibrate` measures all of it and `hyrt devices --measure` the devices; predictions and `--devices auto`
read it.
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

from hyrt_perfmodel.platforms.calibration_file import (
    Calibration,
    CalibrationError,
    Machine,
    calibration_file,
    read_calibration,
    to_text,
    why_other_device,
    why_other_machine,
    why_stale,
)
from hyrt_perfmodel.platforms.platform import Accelerator, PlatformTrainer, TrainerRates

from hyrt.device import DeviceInfo, Rates
from hyrt.device.discovery import Survey, survey_devices
from hyrt.errors import DataNotWritten
from hyrt.machine.atomic_write import write_atomically
from hyrt.machine.cores import processor_name, shared_cores

_PACKAGES = ("hyrt", "torch", "numba", "numpy")


def this_machine(devices: Mapping[str, str]) -> Machine:
    """What makes measurements here comparable.

    Parameters
    ----------
    devices
        The descriptions of the devices that are there, by name.
    """
    return Machine(
        node=platform.node(),
        processor=processor_name() or "unknown",
        cores=shared_cores(),
        versions={name: metadata.version(name) for name in _PACKAGES},
        devices=dict(devices),
    )


def real_devices(surveys: Sequence[Survey] | None = None) -> list[DeviceInfo]:
    """Every device that may be measured and chosen: all that are real, the CPU once.

    Parameters
    ----------
    surveys
        The findings of the backends; they are asked by default.
    """
    surveys = survey_devices() if surveys is None else surveys
    found = [info for survey in surveys for info in survey.found if not info.simulated]
    return [info for info in found if info.kind != "cpu" or info.index == 0]


def shares_cores(info: DeviceInfo) -> bool:
    """Whether a device beside the CPU computes on the CPU's cores, and so is never chosen by itself."""
    return info.kind != "cpu" and info.host_cores > 0


def check_place() -> None:
    """Raise what `keep` would, before anything is measured."""
    path = calibration_file()
    with _place_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


@contextmanager
def _place_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataNotWritten(
            f"{path}: the measurements cannot be stored: {error.strerror}. Set XDG_CACHE_HOME to a "
            "writable folder"
        ) from error


def keep(calibration: Calibration) -> None:
    """Write measurements to the user's cache folder.

    Raises
    ------
    DataNotWritten
        If that cannot be written.
    """
    path = calibration_file()
    with _place_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_text(calibration).encode())


def usable() -> tuple[Calibration | None, str]:
    """The calibration, if it was made here with these cores and versions; the devices are not asked.

    Returns
    -------
    The calibration, or None with the reason, which is empty where nobody has calibrated.
    """
    if not os.path.exists(calibration_file()):
        return None, ""
    try:
        calibration = read_calibration(whole=False)
    except CalibrationError as error:
        return None, str(error)
    if not calibration.is_whole:
        return None, ""
    reasons = why_other_machine(calibration, this_machine({}))
    if reasons:
        return None, f"the calibration was {reasons[0]}: run `hyrt calibrate`"
    return calibration, ""


def kept(devices: list[DeviceInfo] | None = None) -> tuple[Calibration | None, list[str]]:
    """Read the calibration of this machine, and why it is missing or incomplete; no reason if it is good.

    Parameters
    ----------
    devices
        The devices that are there now; found out where they are not given.
    """
    try:
        calibration = read_calibration()
    except CalibrationError as error:
        return None, [str(error)]
    there = real_devices() if devices is None else devices
    measured = calibration.machine.devices
    # What shares the CPU's cores is measured only where it is asked for.
    wanted = [info for info in there if info.name in measured or not shares_cores(info)]
    here = this_machine({info.name: info.description for info in wanted})
    return calibration, why_stale(calibration, here)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSpeed:
    """What is known of a device's speed."""

    trainer: PlatformTrainer | None
    """The device with its rates for a kind of model, as the performance model takes it; None where nothing is
    known."""
    rates: Rates | None
    """The rates for people: the middle of those for all kinds of models; None where nothing is known."""
    not_used: str = ""
    """Why a measurement was not used; empty where none was made, or it was used."""


def read_measured() -> Calibration | None:
    """What was measured of this machine, its devices at least; None without a file that can be read."""
    try:
        return read_calibration(whole=False)
    except CalibrationError:
        return None


def known_speed(info: DeviceInfo, calibration: Calibration | None, model: str = "") -> KnownSpeed:
    """The measured speed of a device where it still holds, else the assumed one.

    Parameters
    ----------
    info
        The device as it was found now.
    calibration
        The measurements of the machine.
    model
        A kind of model; for one that was not measured the rates of the first count.
    """
    not_used = ""
    if calibration is not None and info.name in calibration.machine.devices:
        not_used = _why_not(info, calibration)
        if not not_used:
            return _measured(info, calibration, model)
    rates = info.rates
    if rates is None:
        return KnownSpeed(trainer=None, rates=None, not_used=not_used)
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
    return KnownSpeed(trainer=trainer, rates=rates, not_used=not_used)


def _why_not(info: DeviceInfo, calibration: Calibration) -> str:
    here = this_machine({info.name: info.description})
    reasons = [*why_other_machine(calibration, here), why_other_device(calibration, here, info.name)]
    return next((f"measurement {reason}" for reason in reasons if reason), "")


def _measured(info: DeviceInfo, calibration: Calibration, model: str) -> KnownSpeed:
    platform = calibration.platform
    if info.kind == "cpu":
        trainer, models = platform.trainers(model)[0], platform.host.models
    else:
        accelerator = accelerators_by_name(calibration)[info.name]
        alone = replace(platform, host=replace(platform.host, trains=False), accelerators=(accelerator,))
        trainer, models = alone.trainers(model)[0], accelerator.models
    reached = calibration.measured.get("devices", {}).get(info.name, {})
    macs_per_s = _usual([rates.macs_per_s for rates in models.values()], reached.get("macs_per_s"))
    memory_bytes_per_s = _usual(
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
    return KnownSpeed(trainer=trainer, rates=rates)


def _usual(fitted: Sequence[float], reached: Any) -> float:
    """The middle of the rates that were fitted to kinds of models, at least what was reached; 0 without any.

    A kind that hardly uses a term says little of its rate: a fit may find far too high a one, or none.
    """
    known = [each for each in fitted if math.isfinite(each)]
    least = float(reached) if isinstance(reached, int | float) and math.isfinite(reached) else 0.0
    return max(statistics.median(known), least) if known else least


def accelerators_by_name(calibration: Calibration) -> dict[str, Accelerator]:
    """The accelerators that were measured, by the names of their devices."""
    names = [name for name in calibration.machine.devices if not name.startswith("cpu:")]
    return dict(zip(names, calibration.platform.accelerators, strict=True))
