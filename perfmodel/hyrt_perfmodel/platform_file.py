"""Platform files: calibrations from `hyrt calibrate`, and YAML descriptions of machines."""

from __future__ import annotations

import platform as python_platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from hyrt_perfmodel.fpga_design import FpgaDesign
from hyrt_perfmodel.platform import Platform
from hyrt_perfmodel.suggestions import nearest_name
from hyrt_perfmodel.user_cache import user_cache_dir
from hyrt_perfmodel.validation import (
    Number,
    StrictDumper,
    StrictYaml,
    build_dataclass,
    check_keys,
    check_kind,
    check_mapping,
    read_yaml,
)

_REMEDY = "run `hyrt calibrate`"


class CalibrationError(ValueError):
    """Lack of a usable calibration of this machine. The message contains the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Hardware and software versions that must be equal for measurements to apply."""

    node: str
    processor: str
    cores: int
    """Number of cores that are available to the process."""
    versions: Mapping[str, str]
    """Versions of hyrt and of the libraries that determine its speed."""
    devices: Mapping[str, str]
    """Descriptions of the measured devices, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Result of one calibration."""

    machine: Machine
    date: str
    """Date of the calibration in ISO format."""
    seconds: float
    platform: Platform
    measured: Mapping[str, Any]
    """Figures for readers: bandwidths, standard deviations, and reasons for skipped measurements."""

    @property
    def is_complete(self) -> bool:
        """Whether the whole machine was measured, unlike with `hyrt devices --measure`."""
        return bool(self.platform.host.sampling)


def calibration_file(node: str | None = None) -> Path:
    """Return the path of a machine's calibration in the user's cache folder.

    Several machines may share this folder.
    """
    return user_cache_dir() / "hyrt" / f"calibration-{node or python_platform.node() or 'here'}.yaml"


def format_calibration(calibration: Calibration) -> str:
    """Return the text of a calibration file."""
    return yaml.dump(to_plain(asdict(calibration)), Dumper=StrictDumper, sort_keys=False)


def read_calibration(path: Path | None = None, *, require_complete: bool = True) -> Calibration:
    """Read a calibration, by default that of this machine.

    With `require_complete`, a calibration that covers only devices is rejected. Raises CalibrationError with
    the remedy if the file is missing or damaged.
    """
    path = calibration_file() if path is None else path
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CalibrationError(f"this machine has not been calibrated: {_REMEDY}") from None
    except OSError as error:
        # Do not suggest a new calibration, because it could not be stored either.
        raise CalibrationError(
            f"{path} cannot be read ({error.strerror}): set XDG_CACHE_HOME to a readable and writable "
            f"folder, then {_REMEDY}"
        ) from error
    except UnicodeDecodeError as error:
        raise CalibrationError(f"{path} cannot be read ({error}): {_REMEDY}") from error
    try:
        calibration = build_dataclass(Calibration, yaml.load(text, StrictYaml), str(path), infinite=True)
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).removeprefix(f"{path}: ").split())
        raise CalibrationError(
            f"{path} is not a calibration written by this version of hyrt ({reason}): {_REMEDY}"
        ) from error
    if require_complete and not calibration.is_complete:
        raise CalibrationError(
            f"only the devices of this machine have been measured, not its host: {_REMEDY}"
        )
    return calibration


def staleness_reasons(calibration: Calibration, current: Machine) -> list[str]:
    """Return the reasons, if any, why a calibration does not apply to the machine's current state."""
    reasons = machine_mismatches(calibration, current)
    if calibration.machine.node == current.node:
        names = sorted(current.devices.keys() | calibration.machine.devices.keys())
        reasons += [reason for name in names if (reason := device_mismatch(calibration, current, name))]
    return reasons


def machine_mismatches(calibration: Calibration, current: Machine) -> list[str]:
    """Return the reasons, if any, why host measurements do not apply to the machine's current state."""
    measured = calibration.machine
    if measured.node != current.node:
        return [f"made on another machine ({measured.node})"]
    reasons = []
    if measured.processor != current.processor:
        reasons.append(f"made on another processor ({measured.processor})")
    if measured.cores != current.cores:
        reasons.append(f"made with {measured.cores} cores, but {current.cores} are available now")
    for name, version in current.versions.items():
        old = measured.versions.get(name, "none")
        if old != version:
            reasons.append(f"made with {name} {old}, but {name} {version} is installed now")
    return reasons


def device_mismatch(calibration: Calibration, current: Machine, name: str) -> str:
    """Return the reason why a device's measurement does not apply to the machine's current state, or ""."""
    before, now = calibration.machine.devices.get(name), current.devices.get(name)
    if before is None:
        return f"made without {name}"
    if now is None:
        return f"made with {name}, which is no longer available"
    return f"made when {name} was another device ({before})" if before != now else ""


def to_plain(value: Any) -> Any:
    """Convert a value to types that YAML supports."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    if isinstance(value, float):
        # Convert numpy floats too, which YAML cannot represent.
        return float(f"{float(value):.6g}")
    return value


THIS_MACHINE = "this-machine"
_MAX_COUNT = 1024


def platform_names() -> list[str]:
    """Return the names that `load_platform` accepts: the built-in machines and `this-machine`."""
    folder = resources.files("hyrt_perfmodel") / "platforms"
    built_in = [
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    ]
    return [*sorted(built_in), THIS_MACHINE]


def load_platform(name_or_path: str) -> Platform:
    """Load a built-in platform, the calibrated `this-machine`, or a platform from a YAML file.

    Raises
    ------
    ValueError
        If the platform is unknown (the message suggests the nearest name) or the file is invalid.
    CalibrationError
        If this machine has not been calibrated.
    """
    check_kind("platform", name_or_path, str, "pass its name or the path of a .yaml file")
    if not name_or_path:
        raise ValueError("the platform name is empty: use a name or the path of a .yaml file")
    if name_or_path == THIS_MACHINE:
        return read_calibration().platform
    if name_or_path in platform_names():
        known = resources.files("hyrt_perfmodel") / "platforms" / f"{name_or_path}.yaml"
        return parse_platform(yaml.safe_load(known.read_text("utf-8")), name_or_path)
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or _exists(path):
        return parse_platform(read_yaml(path), str(path))
    near = nearest_name(name_or_path, platform_names())
    hint = f" (did you mean {near!r}?)" if near else ""
    raise ValueError(
        f"unknown platform {name_or_path!r}{hint}: choose one of "
        f"{', '.join(platform_names())}, or a .yaml file"
    )


def parse_platform(content: Any, location: str) -> Platform:
    """Create a platform from the content of its file.

    The content contains `host` and `accelerators`, and optionally `name`, `source` and `relative_error`.
    `location` is the file, for messages and as the default name. Raises ValueError, naming file and key.
    """
    content = dict(check_mapping(content, location))
    entries = content.get("accelerators")
    if entries is None:
        content.pop("accelerators", None)
    elif isinstance(entries, list):
        content["accelerators"] = [
            _with_design(entry, f"{location}: accelerators[{i}]") for i, entry in enumerate(entries)
        ]
    platform = build_dataclass(
        Platform, {"name": location, "source": f"given in {location}", **content}, location
    )
    for i, accelerator in enumerate(platform.accelerators):
        prefix = f"{location}: accelerators[{i}]"
        if ":" in accelerator.kind or accelerator.kind == "cpu":
            raise ValueError(
                f"{prefix}.kind must be a name without a colon other than cpu, which is the host, got "
                f"{accelerator.kind!r}"
            )
        if accelerator.count > _MAX_COUNT:
            raise ValueError(f"{prefix}.count must be from 0 to {_MAX_COUNT}, got {accelerator.count}")
    return platform


def _with_design(entry: Any, where: str) -> Any:
    """Return an accelerator entry whose design has its memory bandwidth in bytes per second."""
    if not isinstance(entry, dict) or entry.get("design") is None:
        return entry
    where = f"{where}.design"
    design = dict(check_mapping(entry["design"], where))
    known = [field.name for field in fields(FpgaDesign)]
    check_keys(design, [*known, "ddr_gb_s"], ("pes", "mac_rows", "mac_cols"), where)
    if "ddr_gb_s" in design:
        peak = build_dataclass(_DesignMemory, {"ddr_gb_s": design.pop("ddr_gb_s")}, where)
        design["ddr_bytes_per_s"] = 1e9 * peak.ddr_gb_s
    return {**entry, "design": design}


@dataclass(frozen=True, slots=True)
class _DesignMemory:
    """Key of a design whose unit in files differs from that in the dataclass."""

    ddr_gb_s: Number


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # The text is not a valid file name.
