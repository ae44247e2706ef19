"""Calibration files written by `hyrt calibrate`."""

from __future__ import annotations

import platform as python_platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from hyrt_perfmodel.file_content import StrictDumper, StrictYaml, made_of
from hyrt_perfmodel.platforms.platform import Platform
from hyrt_perfmodel.user_cache import user_cache

_REMEDY = "run `hyrt calibrate`"


class CalibrationError(ValueError):
    """No usable calibration of this machine; the message includes the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hardware and software versions under which measurements are comparable."""

    node: str
    """Host name."""
    processor: str
    """Processor name."""
    cores: int
    """Cores available to the process."""
    versions: Mapping[str, str]
    """Versions of hyrt and of the libraries that determine its speed."""
    devices: Mapping[str, str]
    """Description per measured device name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Result of one calibration."""

    machine: Machine
    """Machine that was calibrated."""
    date: str
    """ISO date."""
    seconds: float
    """Duration of the calibration, in seconds."""
    platform: Platform
    """Rates for the performance model."""
    measured: Mapping[str, Any]
    """Further figures for human readers: bandwidths, standard deviations, skipped measurements with reasons.
    """

    @property
    def is_whole(self) -> bool:
        """Whether the whole machine was measured; `hyrt devices --measure` measures only the devices."""
        return bool(self.platform.host.sampling)


def calibration_file(node: str | None = None) -> Path:
    """Return the path of a machine's calibration in the user's cache folder, which several machines may
    share.
    """
    return user_cache() / "hyrt" / f"calibration-{node or python_platform.node() or 'here'}.yaml"


def to_text(calibration: Calibration) -> str:
    """Return the text of a calibration file."""
    return yaml.dump(plain(asdict(calibration)), Dumper=StrictDumper, sort_keys=False)


def read_calibration(path: Path | None = None, *, whole: bool = True) -> Calibration:
    """Read a machine's calibration.

    Parameters
    ----------
    path
        The file; by default the file of this machine.
    whole
        Whether to reject a calibration that covers only the devices.

    Raises
    ------
    CalibrationError
        If the file is missing or damaged.
    """
    path = calibration_file() if path is None else path
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CalibrationError(f"this machine has not been calibrated: {_REMEDY}") from None
    except OSError as error:
        # A new calibration would not help: it could not be stored either.
        raise CalibrationError(
            f"{path} cannot be read: {error.strerror}: set XDG_CACHE_HOME to a folder of your own, and "
            f"{_REMEDY}"
        ) from error
    except UnicodeDecodeError as error:
        raise CalibrationError(f"{path} cannot be read: {error}: {_REMEDY}") from error
    try:
        calibration = made_of(Calibration, yaml.load(text, StrictYaml), str(path), infinite=True)
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).removeprefix(f"{path}: ").split())
        raise CalibrationError(
            f"{path}: not a calibration written by this version of hyrt ({reason}): {_REMEDY}"
        ) from error
    if whole and not calibration.is_whole:
        raise CalibrationError(f"only the devices of this machine have been measured: {_REMEDY}")
    return calibration


def why_stale(calibration: Calibration, here: Machine) -> list[str]:
    """Return the reasons why a calibration does not apply to a machine as it is now; may be empty."""
    reasons = why_other_machine(calibration, here)
    if calibration.machine.node == here.node:
        names = sorted(here.devices.keys() | calibration.machine.devices.keys())
        reasons += [reason for name in names if (reason := why_other_device(calibration, here, name))]
    return reasons


def why_other_machine(calibration: Calibration, here: Machine) -> list[str]:
    """Return the reasons why host measurements do not apply to a machine as it is now; may be empty."""
    measured = calibration.machine
    if measured.node != here.node:
        return [f"made on another machine ({measured.node})"]
    reasons = []
    if measured.processor != here.processor:
        reasons.append(f"made on another processor ({measured.processor})")
    if measured.cores != here.cores:
        reasons.append(f"made with {measured.cores} cores, but {here.cores} are available now")
    for name, version in here.versions.items():
        old = measured.versions.get(name, "none")
        if old != version:
            reasons.append(f"made with {name} {old}, but this is {name} {version}")
    return reasons


def why_other_device(calibration: Calibration, here: Machine, name: str) -> str:
    """Return why a device's measurement does not apply to a machine's current state; empty if it applies."""
    before, now = calibration.machine.devices.get(name), here.devices.get(name)
    if before is None:
        return f"made without {name}"
    if now is None:
        return f"made with {name}, which is no longer available"
    return f"made when {name} was another device ({before})" if before != now else ""


def plain(value: Any) -> Any:
    """Convert a value to types that YAML supports."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        # This includes numpy floats, which YAML cannot represent.
        return float(f"{float(value):.6g}")
    return value
