"""Finding device backends: entry points of the group `hyrt.devices`, imported when they are first used."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint

from hyrt.device import Device, DeviceInfo
from hyrt.device.capabilities import why_missing
from hyrt.errors import DeviceUnavailable, PluginConflict, describe
from hyrt.machine.entry_points import EntryPointGroup, provider

BACKENDS = EntryPointGroup("hyrt.devices", "device kind", DeviceUnavailable, see="See `hyrt devices`")

# A driver that hangs while it looks for its hardware must not hang the command that asks what there is.
_PROBE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a backend said; no backend where it is broken."""

    backend: type[Device] | None
    found: tuple[DeviceInfo, ...] = ()
    problem: str = ""
    cause: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What one declared backend found."""

    kind: str
    """Of its devices."""
    provider: str
    """Name and version of the distribution that declares it."""
    found: tuple[DeviceInfo, ...] = ()
    """Its devices."""
    problem: str = ""
    """Why there is nothing, with the remedy, in one line; empty where something was found."""


def survey_devices(timeout_s: float = _PROBE_TIMEOUT_S) -> list[Survey]:
    """Ask every declared backend what it finds; one that is broken is a line with its reason."""
    return [_survey(kind, entries, timeout_s) for kind, entries in BACKENDS.declared().items()]


def find_device(name: str, timeout_s: float = _PROBE_TIMEOUT_S) -> tuple[type[Device], DeviceInfo]:
    """The backend and the device behind a name like `cpu` or `cuda:0`.

    Parameters
    ----------
    name
        `kind` or `kind:index`.
    timeout_s
        For the backend to say what it finds.

    Raises
    ------
    DeviceUnavailable
        If there is no such kind, its backend cannot be imported, fails or hangs while it looks, or the
        machine has no such device; with the remedy.
    PluginConflict
        If two distributions declare the kind.
    """
    kind, _, index = name.partition(":")
    # What people call a graphics card, whoever made it.
    entry = BACKENDS.entry(kind, nearest="cuda" if kind in ("gpu", "nvidia") else kind)
    if index and not index.isdecimal():
        raise DeviceUnavailable(
            f"{name!r} is not the name of a device: write kind or kind:number, such as cpu or cuda:0"
        )
    answer = _ask(entry, timeout_s)
    if answer.backend is None:
        raise DeviceUnavailable(
            f"{kind}: its backend {entry.value} ({provider(entry)}) is {answer.problem}"
        ) from answer.cause
    wanted = int(index) if index else 0
    there = answer.found
    for info in there:
        if info.index == wanted:
            return answer.backend, info
    if there:
        found = ", ".join(f"{info.name} {info.description}" for info in there)
        reason = f"{len(there)} {kind} device{'s' * (len(there) > 1)} found ({found})"
    else:
        reason = answer.problem
    raise DeviceUnavailable(f"{kind}:{wanted} is not available: {reason}. See `hyrt devices`")


def _ask(entry: EntryPoint, timeout_s: float) -> _Answer:
    """Import a backend and let it look for its devices, in a bounded time and whatever it does."""
    answers: list[_Answer] = []

    def look() -> None:
        try:
            backend: type[Device] = entry.load()
            found = tuple(backend.probe())
            check_found(entry.name, found)
            answers.append(_Answer(backend, found, "" if found else why_missing(backend)))
        except BaseException as error:
            # A plug-in may raise anything, SystemExit too: it is the plug-in that is broken.
            answers.append(_Answer(None, problem=f"broken: {_in_one_line(describe(error))}", cause=error))

    # A thread that hangs in a driver cannot be ended: it is left behind, and does not keep the process alive.
    thread = threading.Thread(target=look, name=f"hyrt.probe.{entry.name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not answers:
        silence = f"hanging: its driver did not answer within {timeout_s:g} s: restart it, or the machine"
        return _Answer(None, problem=silence)
    return answers[0]


def check_found(kind: str, found: Sequence[DeviceInfo]) -> None:
    """Refuse what a probe found that could be listed but never asked for.

    Raises
    ------
    DeviceUnavailable
        If something of it is no device of that kind, or two devices have one number.
    """
    for info in found:
        if not isinstance(info, DeviceInfo) or info.kind != kind:
            raise DeviceUnavailable(f"its probe found {info!r}, which is not a device of kind {kind!r}")
    numbers = [info.index for info in found]
    for number in numbers:
        if numbers.count(number) > 1:
            raise DeviceUnavailable(f"its probe found two devices with the number {number}")


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def _survey(kind: str, entries: list[EntryPoint], timeout_s: float) -> Survey:
    try:
        entry = BACKENDS.only(kind, entries)
    except PluginConflict as error:
        return Survey(kind, " and ".join(provider(entry) for entry in entries), problem=str(error))
    answer = _ask(entry, timeout_s)
    return Survey(kind, provider(entry), answer.found, answer.problem)
