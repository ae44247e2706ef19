"""Platforms as YAML: built in, or the user's own."""

from __future__ import annotations

import difflib
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from hyrt_perfmodel.cycles.design import FpgaDesign
from hyrt_perfmodel.file_content import listed, made_of, mapping, number, only_keys, read_yaml, text, within
from hyrt_perfmodel.platforms.calibration_file import read_calibration
from hyrt_perfmodel.platforms.platform import Accelerator, Host, Platform

THIS_MACHINE = "this-machine"
_MOST_EQUAL = 1024


def platform_names() -> list[str]:
    """What `load_platform` knows by name: the built-in machines, and this one."""
    folder = resources.files("hyrt_perfmodel") / "platforms"
    built_in = [
        entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml")
    ]
    return [*sorted(built_in), THIS_MACHINE]


def load_platform(name_or_path: str) -> Platform:
    """A built-in platform, `this-machine` as it was calibrated, or one from a YAML file.

    Raises
    ------
    ValueError
        If there is no such platform (with the nearest name), or its file is not one; with file and key.
    CalibrationError
        If this machine has not been calibrated.
    """
    if name_or_path == THIS_MACHINE:
        return read_calibration().platform
    if name_or_path in platform_names():
        known = resources.files("hyrt_perfmodel") / "platforms" / f"{name_or_path}.yaml"
        return platform_from(yaml.safe_load(known.read_text("utf-8")), name_or_path)
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml") or _exists(path):
        return platform_from(read_yaml(path), str(path))
    near = difflib.get_close_matches(name_or_path, platform_names(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(
        f"unknown platform {name_or_path!r}: {hint}The known platforms are "
        f"{', '.join(platform_names())}; or give a .yaml file"
    )


def platform_from(content: Any, where: str) -> Platform:
    """A platform from what its file holds.

    Parameters
    ----------
    content
        `host` and `accelerators`, and optionally `name`, `source` and `relative_error`.
    where
        The file, for messages and as the platform's name.

    Raises
    ------
    ValueError
        Naming file and key.
    """
    content = mapping(content, where)
    only_keys(content, ("name", "source", "relative_error", "host", "accelerators"), ("host",), where)
    host = made_of(Host, content["host"], f"{where}: host")
    given = content.get("accelerators")
    entries = [] if given is None else listed(given, f"{where}: accelerators")
    accelerators = [_accelerator(entry, f"{where}: accelerators[{i}]") for i, entry in enumerate(entries)]
    name = text(content.get("name", where), f"{where}: name")
    source = text(content.get("source", f"given in {where}"), f"{where}: source")
    given = content.get("relative_error")
    error = None if given is None else number(given, f"{where}: relative_error")
    try:
        return Platform(
            name=name, host=host, accelerators=tuple(accelerators), source=source, relative_error=error
        )
    except ValueError as problem:
        raise ValueError(within(str(problem), where)) from problem


def _accelerator(content: Any, where: str) -> Accelerator:
    content = dict(mapping(content, where))
    design = content.pop("design", None)
    found = made_of(Accelerator, content, where)
    if ":" in found.kind or found.kind == "cpu":
        raise ValueError(
            f"{where}.kind is {found.kind!r}: trainers are named kind:number, and cpu:0 is the host: give "
            "another name"
        )
    if found.count > _MOST_EQUAL:
        raise ValueError(f"{where}.count is {found.count}: give a number from 0 to {_MOST_EQUAL}")
    return found if design is None else replace(found, design=_design(design, f"{where}.design"))


def _design(content: Any, where: str) -> FpgaDesign:
    """In a file the memory's bandwidth is in 1e9 bytes a second, like all others."""
    content = dict(mapping(content, where))
    if "ddr_gb_s" in content:
        content["ddr_bytes_per_s"] = 1e9 * number(content.pop("ddr_gb_s"), f"{where}.ddr_gb_s")
    return made_of(FpgaDesign, content, where, required=("pes", "mac_rows", "mac_cols"))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # No file can have such a name.
