"""Importing a backend and letting it look for its devices: here, or where it may end the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from importlib.metadata import EntryPoint
from typing import Any

from hyrt.device import Device, DeviceInfo, Rates
from hyrt.device.capabilities import why_missing
from hyrt.errors import DeviceUnavailable


def probed(entry: EntryPoint) -> tuple[type[Device], tuple[DeviceInfo, ...], str]:
    """A backend, its devices, and why there are none; whatever importing and probing raise comes through.

    Raises
    ------
    DeviceUnavailable
        If it found what could be listed but never asked for.
    """
    backend: type[Device] = entry.load()
    found = tuple(backend.probe())
    _check_found(entry.name, found)
    return backend, found, "" if found else why_missing(backend)


def _check_found(kind: str, found: Sequence[DeviceInfo]) -> None:
    for info in found:
        if not isinstance(info, DeviceInfo):
            raise DeviceUnavailable(
                f"its probe found {type(info).__name__} {info!r}, which is not a DeviceInfo"
            )
        if info.kind != kind:
            raise DeviceUnavailable(f"its probe found a device of kind {info.kind!r}")
    numbers = [info.index for info in found]
    for number in numbers:
        if numbers.count(number) > 1:
            raise DeviceUnavailable(f"its probe found two devices with the number {number}")


def answer(item: str, say: Callable[..., None], *, values: Mapping[str, str]) -> None:
    """Say what a kind's entry point, `module:Class` in `values`, has `found`, for `info_of`, and `missing`.

    In a child process: see `hyrt.machine.child_processes.children`.
    """
    _, found, missing = probed(EntryPoint(item, values[item], "hyrt.devices"))
    say(found=[asdict(info) for info in found], missing=missing)


def info_of(said: Mapping[str, Any]) -> DeviceInfo:
    """The description that another process has said."""
    known = {field.name: said[field.name] for field in fields(DeviceInfo)}
    rates = None if said["rates"] is None else Rates(**said["rates"])
    return DeviceInfo(**{**known, "forms": tuple(said["forms"]), "rates": rates})
