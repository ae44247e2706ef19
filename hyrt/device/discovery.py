"""Finding device backends: entry points of the group `hyrt.devices`, imported when they are first used."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

from hyrt.device import Device, DeviceInfo
from hyrt.device.names import NAME_FORM, NO_NAME
from hyrt.device.probing import info_of, probed
from hyrt.errors import DeviceUnavailable, PluginConflict, describe, listed, one_line
from hyrt.machine.entry_points import EntryPointGroup, is_foreign, provider, remedy
from hyrt.quantities import whole_number

if TYPE_CHECKING:
    from hyrt.machine.child_processes.children import Answer

BACKENDS = EntryPointGroup("hyrt.devices", "device kind", DeviceUnavailable, see="See `hyrt devices`")

# A driver that hangs while it looks for its hardware must not hang the command that asks what there is.
_PROBE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Survey:
    """What one declared backend found."""

    kind: str
    """The kind of the backend's devices."""
    provider: str
    """Name and version of the distribution that declares it."""
    found: tuple[DeviceInfo, ...] = ()
    """The devices that the backend found."""
    problem: str = ""
    """Why there is nothing, with the remedy, in one line; empty where something was found."""
    is_foreign: bool = False
    """Whether another distribution than hyrt declares it."""


def survey_devices(timeout_s: float = _PROBE_TIMEOUT_S) -> list[Survey]:
    """Ask every declared backend what it finds; one that is broken is a line with its reason.

    Those of other distributions are asked in a child process: a driver library that ends the process it is
    loaded into must not end the command that asks what there is.
    """
    declared = BACKENDS.declared()
    foreign = {
        kind: entries[0] for kind, entries in declared.items() if len(entries) == 1 and is_foreign(entries[0])
    }
    answers = _ask_elsewhere(foreign, timeout_s) if foreign else {}
    return [
        _heard(foreign[kind], answers[kind]) if kind in foreign else _survey(kind, entries, timeout_s)
        for kind, entries in declared.items()
    ]


def find_device(name: str, timeout_s: float = _PROBE_TIMEOUT_S) -> tuple[type[Device], DeviceInfo]:
    """The backend and the device behind a name like `cpu` or `cuda:0`.

    Parameters
    ----------
    name
        `kind` or `kind:index`.
    timeout_s
        How long a backend may take to say what it finds, in seconds; and for how long its import, which may
        take longer, may import and read nothing more.

    Raises
    ------
    DeviceUnavailable
        If there is no such kind, its backend cannot be imported, fails or hangs while it looks, or the
        machine has no such device; with the remedy.
    PluginConflict
        If two distributions declare the kind.
    """
    kind, wanted, entry = read_name(name)
    try:
        with BACKENDS.named_if_it_ends(entry):
            backend, found, problem = _ask(entry, timeout_s)
    except _Broken as broken:
        raise DeviceUnavailable(
            f"{kind}: its backend {entry.value} ({provider(entry)}) is {broken}"
        ) from broken.__cause__
    for info in found:
        if info.index == wanted:
            return backend, info
    if found:
        names = listed(info.name for info in found)
        problem = (
            f"the {kind} devices are {names}" if len(found) > 1 else f"the only {kind} device is {names}"
        )
    raise DeviceUnavailable(f"{kind}:{wanted} is not available: {problem}. See `hyrt devices`")


def read_name(name: str) -> tuple[str, int, EntryPoint]:
    """The kind, the number and the backend that a name like `cpu` or `cuda:0` says; nothing is imported.

    Raises
    ------
    DeviceUnavailable
        If it cannot be read, or there is no such kind.
    PluginConflict
        If two distributions declare the kind.
    """
    kind, _, index = name.partition(":")
    kind = BACKENDS.spelling(kind)
    # What people call a graphics card, whoever made it.
    entry = BACKENDS.entry(kind, nearest="cuda" if kind.lower() in ("gpu", "nvidia") else kind)
    number = whole_number(index or "0")
    if number is None:
        raise DeviceUnavailable(f"{name!r} {NO_NAME}: {NAME_FORM}")
    return kind, number, entry


class _Broken(Exception):
    """A backend cannot be imported, or fails or hangs while it looks; says which, with the remedy."""


def _ask(entry: EntryPoint, timeout_s: float) -> tuple[type[Device], tuple[DeviceInfo, ...], str]:
    """Import a backend and let it look for its devices, in a bounded time and whatever it raises."""
    answers: list[tuple[type[Device], tuple[DeviceInfo, ...], str]] = []
    errors: list[BaseException] = []
    imported = threading.Event()

    def look() -> None:
        try:
            entry.load()
            imported.set()
            answers.append(probed(entry))
        except BaseException as error:
            # A plug-in may raise anything, SystemExit too: it is the plug-in that is broken.
            errors.append(error)
            imported.set()

    # A thread that hangs in a driver cannot be ended: it is left behind, and does not keep the process alive.
    thread = threading.Thread(target=look, name=f"hyrt.probe.{entry.name}", daemon=True)
    before = _brought_in()
    thread.start()
    # torch alone is hundreds of megabytes, which a slow disk gives in minutes.
    while not imported.wait(timeout_s):
        now = _brought_in()
        if now == before:
            raise _Broken(_hanging(f"its import has read nothing more for {timeout_s:g} s"))
        before = now
    thread.join(timeout_s)
    if errors:
        raise _Broken(_broken(entry, describe(errors[0]))) from errors[0]
    if not answers:
        raise _Broken(_hanging(f"no answer within {timeout_s:g} s"))
    return answers[0]


def _brought_in() -> tuple[int, ...]:
    """What grows while modules are imported: their number, and what was read of the disk for them."""
    use = resource.getrusage(resource.RUSAGE_SELF)
    return len(sys.modules), use.ru_majflt, use.ru_inblock


def _ask_elsewhere(entries: Mapping[str, EntryPoint], timeout_s: float) -> Mapping[str, Answer]:
    # Only who has such a backend waits for what is imported here.
    from hyrt.machine.child_processes.children import Children

    values = {kind: entry.value for kind, entry in entries.items()}
    with Children() as children:
        return children.ask("hyrt.device.probing", list(entries), limit_s=timeout_s, values=values)


def _broken(entry: EntryPoint, why: str) -> str:
    return f"broken: {one_line(why)}{remedy(entry)}"


def _hanging(why: str) -> str:
    return f"hanging: {why}: restart its driver, or the machine"


def _survey(kind: str, entries: list[EntryPoint], timeout_s: float) -> Survey:
    try:
        entry = BACKENDS.only(kind, entries)
    except PluginConflict as error:
        return Survey(kind, BACKENDS.conflict(entries)[0], problem=str(error))
    try:
        _, found, problem = _ask(entry, timeout_s)
    except _Broken as broken:
        return Survey(kind, provider(entry), problem=str(broken))
    return Survey(kind, provider(entry), found, problem)


def _heard(entry: EntryPoint, answer: Answer) -> Survey:
    """What a backend has said in another process, or what became of that."""
    from hyrt.machine.child_processes.children import NOT_STARTED

    why = answer.problem
    if why.startswith("hangs: "):
        why = _hanging(why.removeprefix("hangs: "))
    elif why and not why.startswith(NOT_STARTED):
        why = _broken(entry, why)
    found = () if why else tuple(map(info_of, answer.first("found")))
    return Survey(entry.name, provider(entry), found, why or answer.first("missing"), is_foreign=True)
