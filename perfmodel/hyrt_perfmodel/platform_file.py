"""Platforms as YAML: built in, or the user's own."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from hyrt_perfmodel.calibration import read_calibration
from hyrt_perfmodel.file_content import listed, mapping, number, only_keys, read_yaml, truth, whole
from hyrt_perfmodel.platform import Accelerator, Host, Platform, Rates

THIS_MACHINE = "this-machine"

_Read = Callable[[Any, str], Any]


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where} is {value!r}: give a name")
    return value


def _maybe(read: _Read) -> _Read:
    return lambda value, where: None if value is None else read(value, where)


def _rates(value: Any, where: str) -> dict[str, Rates]:
    return {
        kind: Rates(
            **_fields(
                mapping(entry, f"{where}.{kind}"), _RATES, ("memory_gb_s", "macs_per_s"), f"{where}.{kind}"
            )
        )
        for kind, entry in mapping(value, where).items()
    }


_RATES: dict[str, _Read] = {field.name: number for field in fields(Rates)}
_HOST: dict[str, _Read] = {
    "memory_gb_s": number,
    "macs_per_s": number,
    "trains": truth,
    "cores": _maybe(whole),
    "memory_gib": _maybe(number),
    "thread_load_gb_s": _maybe(number),
    "thread_edges_per_s": _maybe(number),
    "launch_s": number,
    "values_per_s": number,
    "step_s": number,
    "weights_gb_s": number,
    "serial_part": number,
    "core_efficiency": number,
    "shared_memory_gb_s": _maybe(number),
    "models": _rates,
}
_ACCELERATOR: dict[str, _Read] = {
    "kind": _text,
    "memory_gb_s": number,
    "macs_per_s": number,
    "link_gb_s": number,
    "pipelined": truth,
    "reads_each_source_once": truth,
    "count": whole,
    "memory_gib": _maybe(number),
    "link_latency_s": number,
    "launch_s": number,
    "flush_s": number,
    "fill_s": number,
    "values_per_s": number,
    "host_cores": whole,
    "switch_gb_s": _maybe(number),
    "models": _rates,
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
    if path.suffix in (".yaml", ".yml") or path.exists():
        return platform_from(read_yaml(path), str(path))
    near = difflib.get_close_matches(name_or_path, platform_names(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(
        f"unknown platform {name_or_path!r}: {hint}There are {', '.join(platform_names())}; or name a .yaml file"
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
    error = content.get("relative_error")
    try:
        return Platform(
            name=_text(content.get("name", where), f"{where}: name"),
            host=Host(**host),
            accelerators=tuple(Accelerator(**entry) for entry in accelerators),
            source=_text(content.get("source", f"given in {where}"), f"{where}: source"),
            relative_error=None if error is None else number(error, f"{where}: relative_error"),
        )
    except ValueError as problem:
        raise ValueError(f"{where}: {problem}") from problem


def _fields(
    content: Mapping[str, Any], readers: Mapping[str, _Read], required: tuple[str, ...], where: str
) -> dict[str, Any]:
    only_keys(content, readers.keys(), required, where)
    return {key: readers[key](value, f"{where}.{key}") for key, value in content.items()}
