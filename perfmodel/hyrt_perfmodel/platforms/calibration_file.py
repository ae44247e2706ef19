"""What `hyrt calibrate` found out about a machine, as a file."""

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
    """There is no calibration of this machine that can be used; the text has the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What makes measurements comparable: where and with what they were made."""

    node: str
    """Name of the machine."""
    processor: str
    """The name of its processor."""
    cores: int
    """Cores that the process may use."""
    versions: Mapping[str, str]
    """Versions of hyrt and of the libraries that its speed depends on."""
    devices: Mapping[str, str]
    """Name to description of every device that was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One calibration."""

    machine: Machine
    """The machine on which it was made."""
    date: str
    """ISO date."""
    seconds: float
    """How long it took."""
    platform: Platform
    """The numbers, as the performance model takes them."""
    measured: Mapping[str, Any]
    """Further figures for people: bandwidths, spreads, what was left out and why."""

    @property
    def is_whole(self) -> bool:
        """Whether all of the machine was measured; `hyrt devices --measure` measures the devices alone."""
        return bool(self.platform.host.sampling)


def calibration_file(node: str | None = None) -> Path:
    """Where a machine's calibration is kept: the user's cache folder, which several machines may share."""
    return user_cache() / "hyrt" / f"calibration-{node or python_platform.node() or 'here'}.yaml"


def to_text(calibration: Calibration) -> str:
    """The file's text."""
    return yaml.dump(plain(asdict(calibration)), Dumper=StrictDumper, sort_keys=False)


def read_calibration(path: Path | None = None, *, whole: bool = True) -> Calibration:
    """Read what was measured of a machine.

    Parameters
    ----------
    path
        The file; by default that of this machine.
    whole
        Whether measurements of the devices alone are not enough.

    Raises
    ------
    CalibrationError
        If there is none, or the file is damaged.
    """
    path = calibration_file() if path is None else path
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CalibrationError(f"this machine has not been calibrated: {_REMEDY}") from None
    except OSError as error:
        # Measuring again would not help: it could not be stored either.
        raise CalibrationError(
            f"{path} cannot be read: {error.strerror}: set XDG_CACHE_HOME to a folder of your own, and "
            f"{_REMEDY}"
        ) from error
    except UnicodeDecodeError as error:
        raise CalibrationError(f"{path} cannot be read: {error}: {_REMEDY}") from error
    try:
        found = made_of(Calibration, yaml.load(text, StrictYaml), str(path), infinite=True)
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).removeprefix(f"{path}: ").split())
        raise CalibrationError(
            f"{path}: not a calibration written by this version of hyrt ({reason}): {_REMEDY}"
        ) from error
    if whole and not found.is_whole:
        raise CalibrationError(f"only the devices of this machine have been measured: {_REMEDY}")
    return found


def why_stale(calibration: Calibration, here: Machine) -> list[str]:
    """Why a calibration says little about a machine now; empty where it does."""
    reasons = why_other_machine(calibration, here)
    if calibration.machine.node == here.node:
        names = sorted(here.devices.keys() | calibration.machine.devices.keys())
        reasons += [why for name in names if (why := why_other_device(calibration, here, name))]
    return reasons


def why_other_machine(calibration: Calibration, here: Machine) -> list[str]:
    """Why no measurement counts on a machine now, whatever its devices are; empty where they do."""
    there = calibration.machine
    if there.node != here.node:
        return [f"made on another machine ({there.node})"]
    reasons = []
    if there.processor != here.processor:
        reasons.append(f"made on another processor ({there.processor})")
    if there.cores != here.cores:
        reasons.append(f"made with {there.cores} cores, but {here.cores} are available now")
    for name, version in here.versions.items():
        old = there.versions.get(name, "none")
        if old != version:
            reasons.append(f"made with {name} {old}, but this is {name} {version}")
    return reasons


def why_other_device(calibration: Calibration, here: Machine, name: str) -> str:
    """Why a device's measurement does not count on a machine now; empty where it does."""
    before, now = calibration.machine.devices.get(name), here.devices.get(name)
    if before is None:
        return f"made without {name}"
    if now is None:
        return f"made with {name}, which is no longer available"
    return f"made when {name} was another device ({before})" if before != now else ""


def plain(value: Any) -> Any:
    """As YAML's own types."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        # Also numpy's own floats, which YAML has no word for.
        return float(f"{float(value):.6g}")
    return value
