"""Platform descriptions in YAML: built in or user-defined."""

from __future__ import annotations

from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from hyrt_perfmodel.checks import Number, check_kind
from hyrt_perfmodel.cycles.design import FpgaDesign
from hyrt_perfmodel.file_content import made_of, mapping, only_keys, read_yaml
from hyrt_perfmodel.nearest_name import nearest_name
from hyrt_perfmodel.platforms.calibration_file import read_calibration
from hyrt_perfmodel.platforms.platform import Platform

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
        If the platform is unknown (the message suggests the nearest name) or the file is invalid (the message
        names file and key).
    CalibrationError
        If this machine has not been calibrated.
    """
    check_kind("platform", name_or_path, str, "give its name, or the path of a .yaml file")
    if not name_or_path:
        raise ValueError("the name of the platform is empty: give a name, or the path of a .yaml file")
    if name_or_path == THIS_MACHINE:
        return read_calibration().platform
    if name_or_path in platform_names():
        known = resources.files("hyrt_perfmodel") / "platforms" / f"{name_or_path}.yaml"
        return platform_from(yaml.safe_load(known.read_text("utf-8")), name_or_path)
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or _exists(path):
        return platform_from(read_yaml(path), str(path))
    near = nearest_name(name_or_path, platform_names())
    hint = f" (did you mean {near!r}?)" if near else ""
    raise ValueError(
        f"unknown platform {name_or_path!r}{hint}: the known platforms are "
        f"{', '.join(platform_names())}; or give a .yaml file"
    )


def platform_from(content: Any, where: str) -> Platform:
    """Build a platform from the content of its file.

    Parameters
    ----------
    content
        `host` and `accelerators`, and optionally `name`, `source` and `relative_error`.
    where
        The file, for messages and as the default name.

    Raises
    ------
    ValueError
        Naming file and key.
    """
    content = dict(mapping(content, where))
    entries = content.get("accelerators")
    if entries is None:
        content.pop("accelerators", None)
    elif isinstance(entries, list):
        content["accelerators"] = [
            _with_design(entry, f"{where}: accelerators[{i}]") for i, entry in enumerate(entries)
        ]
    platform = made_of(Platform, {"name": where, "source": f"given in {where}", **content}, where)
    for i, accelerator in enumerate(platform.accelerators):
        prefix = f"{where}: accelerators[{i}]"
        if ":" in accelerator.kind or accelerator.kind == "cpu":
            raise ValueError(
                f"{prefix}.kind is {accelerator.kind!r}: trainers are named kind:number, and cpu:0 is the "
                "host: give another name"
            )
        if accelerator.count > _MAX_COUNT:
            raise ValueError(f"{prefix}.count is {accelerator.count}: give a number from 0 to {_MAX_COUNT}")
    return platform


def _with_design(entry: Any, where: str) -> Any:
    """Return an accelerator entry with its design's memory bandwidth converted from 1e9 bytes per second."""
    if not isinstance(entry, dict) or entry.get("design") is None:
        return entry
    where = f"{where}.design"
    design = dict(mapping(entry["design"], where))
    known = [field.name for field in fields(FpgaDesign)]
    only_keys(design, [*known, "ddr_gb_s"], ("pes", "mac_rows", "mac_cols"), where)
    if "ddr_gb_s" in design:
        peak = made_of(_DesignMemory, {"ddr_gb_s": design.pop("ddr_gb_s")}, where)
        design["ddr_bytes_per_s"] = 1e9 * peak.ddr_gb_s
    return {**entry, "design": design}


@dataclass(frozen=True, slots=True)
class _DesignMemory:
    """The only design key whose unit in files differs from the dataclass."""

    ddr_gb_s: Number


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # Not a valid file name.
