"""Platforms as YAML: built in, or the user's own."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from hyrt_perfmodel.cycles.design import FpgaDesign
from hyrt_perfmodel.file_content import (
    listed,
    mapping,
    number,
    number_or_infinity,
    only_keys,
    read_yaml,
    truth,
    whole,
)
from hyrt_perfmodel.platforms.calibration_file import read_calibration
from hyrt_perfmodel.platforms.platform import Accelerator, Host, Platform, TrainerRates

THIS_MACHINE = "this-machine"
_MOST_EQUAL = 1024

_Read = Callable[[Any, str], Any]


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where} is {value!r}: give a name")
    return value


def _kind(value: Any, where: str) -> str:
    found = _text(value, where)
    if ":" in found or found == "cpu":
        raise ValueError(
            f"{where} is {found!r}: trainers are named kind:number, and cpu:0 is the host: give another name"
        )
    return found


def _count(value: Any, where: str) -> int:
    found = whole(value, where)
    if not 0 <= found <= _MOST_EQUAL:
        raise ValueError(f"{where} is {found}: give a number from 0 to {_MOST_EQUAL}")
    return found


def _maybe(read: _Read) -> _Read:
    return lambda value, where: None if value is None else read(value, where)


def _rates(value: Any, where: str) -> dict[str, TrainerRates]:
    found = {}
    for kind, entry in mapping(value, where).items():
        at = f"{where}.{kind}"
        try:
            found[kind] = TrainerRates(
                **_fields(mapping(entry, at), _RATES, ("memory_gb_s", "macs_per_s"), at)
            )
        except ValueError as problem:
            raise ValueError(_within(str(problem), at)) from problem
    return found


def _design(value: Any, where: str) -> FpgaDesign:
    """In a file the memory's bandwidth is in 1e9 bytes a second, like all others; `assumed` names what no build has confirmed."""
    given = _fields(mapping(value, where), _DESIGN, ("pes", "mac_rows", "mac_cols"), where)
    if "ddr_gb_s" in given:
        given["ddr_bytes_per_s"] = 1e9 * given.pop("ddr_gb_s")
    try:
        return FpgaDesign(**given)
    except ValueError as problem:
        raise ValueError(_within(str(problem), where)) from problem


_DESIGN: dict[str, _Read] = {
    "pes": whole,
    "mac_rows": whole,
    "mac_cols": whole,
    "fifo_depth": whole,
    "adder_latency": whole,
    "clock_hz": number,
    "update_ii": whole,
    "network_ii": whole,
    "edge_ii": whole,
    "ddr_gb_s": number,
    "ddr_efficiency": number,
    "launch_s": number,
    "assumed": lambda value, where: frozenset(
        _text(each, f"{where}[{i}]") for i, each in enumerate(listed(value, where))
    ),
}
_RATES: dict[str, _Read] = {
    "memory_gb_s": number,
    "macs_per_s": number,
    "launch_s": number,
    "values_per_s": number_or_infinity,
}
_HOST: dict[str, _Read] = {
    "memory_gb_s": number,
    "macs_per_s": number,
    "trains": truth,
    "cores": _maybe(whole),
    "memory_gib": _maybe(number),
    "thread_load_gb_s": _maybe(number),
    "thread_edges_per_s": _maybe(number),
    "launch_s": number,
    "values_per_s": number_or_infinity,
    "step_s": number,
    "weights_gb_s": number_or_infinity,
    "serial_part": number,
    "core_efficiency": number,
    "shared_memory_gb_s": _maybe(number),
    "models": _rates,
}
_ACCELERATOR: dict[str, _Read] = {
    "kind": _kind,
    "memory_gb_s": number,
    "macs_per_s": number,
    "link_gb_s": number_or_infinity,
    "pipelined": truth,
    "reads_each_source_once": truth,
    "count": _count,
    "memory_gib": _maybe(number),
    "link_latency_s": number,
    "launch_s": number,
    "flush_s": number,
    "fill_s": number,
    "values_per_s": number_or_infinity,
    "host_cores": whole,
    "switch_gb_s": _maybe(number),
    "models": _rates,
    "design": _maybe(_design),
    "arena_words": _maybe(whole),
    "task_targets": _maybe(whole),
}


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
        text = (resources.files("hyrt_perfmodel") / "platforms" / f"{name_or_path}.yaml").read_text("utf-8")
        return platform_from(yaml.safe_load(text), name_or_path)
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
    host = _fields(
        mapping(content["host"], f"{where}: host"), _HOST, ("memory_gb_s", "macs_per_s"), f"{where}: host"
    )
    given = content.get("accelerators")
    accelerators = []
    for i, entry in enumerate([] if given is None else listed(given, f"{where}: accelerators")):
        at = f"{where}: accelerators[{i}]"
        required = ("kind", "memory_gb_s", "macs_per_s", "link_gb_s")
        accelerators.append(_fields(mapping(entry, at), _ACCELERATOR, required, at))
    name = _text(content.get("name", where), f"{where}: name")
    source = _text(content.get("source", f"given in {where}"), f"{where}: source")
    given = content.get("relative_error")
    error = None if given is None else number(given, f"{where}: relative_error")
    if error is not None and error < 0:
        raise ValueError(f"{where}: relative_error is {error:g}: give a fraction of at least 0, such as 0.1")
    try:
        return Platform(
            name=name,
            host=Host(**host),
            accelerators=tuple(Accelerator(**entry) for entry in accelerators),
            source=source,
            relative_error=error,
        )
    except ValueError as problem:
        raise ValueError(_within(str(problem), where)) from problem


def _within(text: str, where: str) -> str:
    """The message with its place, once."""
    return text if text.startswith(where) else f"{where}: {text}"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False  # No file can have such a name.


def _fields(
    content: Mapping[str, Any], readers: Mapping[str, _Read], required: tuple[str, ...], where: str
) -> dict[str, Any]:
    only_keys(content, readers.keys(), required, where)
    return {key: readers[key](value, f"{where}.{key}") for key, value in content.items()}
