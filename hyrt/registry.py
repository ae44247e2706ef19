"""Finding device backends: entry points of the group `hyrt.devices`, imported when they are first used."""

from __future__ import annotations

import difflib
import threading
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from hyrt.errors import DeviceUnavailable, PluginConflict, describe

if TYPE_CHECKING:
    from hyrt.device import Device, DeviceInfo

GROUP = "hyrt.devices"

# A driver that hangs while it looks for its hardware must not hang the command that asks what there is.
_PROBE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Survey:
    """What one declared backend found.

    Parameters
    ----------
    kind
        Of its devices.
    provider
        Name and version of the distribution that declares it.
    found
        Its devices.
    problem
        Why there is nothing, or not all that may be expected, with the remedy; else empty.
    """

    kind: str
    provider: str
    found: tuple[DeviceInfo, ...] = ()
    problem: str = ""


def declared() -> dict[str, list[EntryPoint]]:
    """Entry points by kind; several for one kind are a conflict. Nothing is imported."""
    by_kind: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        known = by_kind.setdefault(entry.name, [])
        # An editable installation may be listed twice.
        if all(other.value != entry.value for other in known):
            known.append(entry)
    return by_kind


def backends() -> dict[str, EntryPoint]:
    """The declared backends by kind; nothing is imported.

    Raises
    ------
    PluginConflict
        If two distributions declare the same kind.
    """
    return {kind: _only(kind, entries) for kind, entries in declared().items()}


def survey_devices(timeout_s: float = _PROBE_TIMEOUT_S) -> list[Survey]:
    """Ask every declared backend what it finds; one that is broken is a line with its reason.

    Parameters
    ----------
    timeout_s
        For one backend.
    """
    return [_survey(kind, entries, timeout_s) for kind, entries in declared().items()]


def find_device(name: str) -> tuple[type[Device], DeviceInfo]:
    """The backend and the device behind a name like `cpu` or `cuda:0`.

    Raises
    ------
    DeviceUnavailable
        If there is no such kind, its backend cannot be imported, or the machine has no such device; with the remedy.
    PluginConflict
        If two distributions declare the kind.
    """
    kind, _, index = name.partition(":")
    known = declared()
    if kind not in known:
        near = difflib.get_close_matches(kind, known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise DeviceUnavailable(
            f"no device kind {kind!r}{hint}: there are {', '.join(sorted(known))}. See `hyrt devices`"
        )
    if index and not index.isdecimal():
        raise DeviceUnavailable(
            f"cannot read the device {name!r}: write kind or kind:number, like cpu or cuda:0"
        )
    entry = _only(kind, known[kind])
    backend = _imported(entry)
    wanted = int(index) if index else 0
    there = backend.probe()
    for info in there:
        if info.index == wanted:
            return backend, info
    if there:
        found = ", ".join(f"{info.name} {info.description}" for info in there)
        reason = f"{len(there)} {kind} device{'s' * (len(there) > 1)} found ({found})"
    else:
        reason = _missing(backend) or f"no {kind} device found"
    raise DeviceUnavailable(f"{kind}:{wanted} is not there: {reason}. See `hyrt devices`")


def _only(kind: str, entries: list[EntryPoint]) -> EntryPoint:
    if len(entries) > 1:
        owners = sorted(_provider(entry) for entry in entries)
        raise PluginConflict(
            f"device kind {kind!r} is declared by {' and by '.join(owners)}: uninstall one of them"
        )
    return entries[0]


def _provider(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _imported(entry: EntryPoint) -> type[Device]:
    try:
        backend: type[Device] = entry.load()
    except Exception as error:  # Whatever a plug-in's import does, it is the plug-in that is broken.
        raise DeviceUnavailable(
            f"{entry.name}: its backend {entry.value} ({_provider(entry)}) cannot be imported: {describe(error)}"
        ) from error
    return backend


def _missing(backend: Any) -> str:
    """Why a backend finds nothing, in its own words, where it has some."""
    speaks = getattr(backend, "missing", None)
    return str(speaks()) if speaks is not None else ""


def _survey(kind: str, entries: list[EntryPoint], timeout_s: float) -> Survey:
    try:
        entry = _only(kind, entries)
    except PluginConflict as error:
        return Survey(kind, " and ".join(_provider(entry) for entry in entries), problem=str(error))
    provider = _provider(entry)
    answer: list[Survey] = []

    def ask() -> None:
        try:
            backend = _imported(entry)
            found = tuple(backend.probe())
            problem = _missing(backend) or ("" if found else "none found")
            answer.append(Survey(kind, provider, found, problem))
        except BaseException as error:  # A plug-in's probe may raise anything, SystemExit too.
            answer.append(Survey(kind, provider, problem=f"broken: {describe(error)}"))

    # A thread that hangs in a driver cannot be ended: it is left behind, and does not keep the process alive.
    thread = threading.Thread(target=ask, name=f"hyrt.probe.{kind}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if not answer:
        return Survey(kind, provider, problem=f"its driver did not answer within {timeout_s:g} s: restart it")
    return answer[0]
