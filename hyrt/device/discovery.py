"""Discovery of devices: probing of backends in the entry-point group, and selection by name."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from hyrt.device import Device, DeviceInfo, Rates
from hyrt.device.capabilities import missing_reason
from hyrt.device.names import NAME_FORM, NO_NAME
from hyrt.errors import DeviceUnavailableError, PluginConflictError, describe_error, join_names, one_line
from hyrt.formatting import parse_int
from hyrt.runtime.entry_points import EntryPointGroup, format_remedy, is_third_party, provider

if TYPE_CHECKING:
    from hyrt.runtime.isolated_worker import Answer


def probed(entry: EntryPoint) -> tuple[type[Device], tuple[DeviceInfo, ...], str]:
    """A backend, its devices, and why there are none; whatever importing and probing raise comes through.

    Raises
    ------
    DeviceUnavailableError
        If it found what could be listed but never asked for.
    """
    backend: type[Device] = entry.load()
    found = tuple(backend.probe())
    _check_found(entry.name, found)
    return backend, found, "" if found else missing_reason(backend)


def _check_found(kind: str, found: Sequence[DeviceInfo]) -> None:
    for info in found:
        if not isinstance(info, DeviceInfo):
            raise DeviceUnavailableError(
                f"its probe found {type(info).__name__} {info!r}, which is not a DeviceInfo"
            )
        if info.kind != kind:
            raise DeviceUnavailableError(f"its probe found a device of kind {info.kind!r}")
    numbers = [info.index for info in found]
    for number in numbers:
        if numbers.count(number) > 1:
            raise DeviceUnavailableError(f"its probe found two devices with the number {number}")


def answer(item: str, say: Callable[..., None], *, values: Mapping[str, str]) -> None:
    """Say what a kind's entry point, `module:Class` in `values`, has `found`, for `info_of`, and `missing`.

    In a child process: see `hyrt.runtime.isolated_worker`.
    """
    _, found, missing = probed(EntryPoint(item, values[item], "hyrt.devices"))
    say(found=[asdict(info) for info in found], missing=missing)


def info_of(report: Mapping[str, Any]) -> DeviceInfo:
    """The description that another process has said."""
    known = {field.name: report[field.name] for field in fields(DeviceInfo)}
    rates = None if report["rates"] is None else Rates(**report["rates"])
    return DeviceInfo(**{**known, "forms": tuple(report["forms"]), "rates": rates})


BACKENDS = EntryPointGroup(
    "hyrt.devices", "device kind", DeviceUnavailableError, docs_hint="See `hyrt devices`"
)

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
    declared = BACKENDS.entries_by_name()
    foreign = {
        kind: entries[0]
        for kind, entries in declared.items()
        if len(entries) == 1 and is_third_party(entries[0])
    }
    answers = _query_in_worker(foreign, timeout_s) if foreign else {}
    return [
        _received(foreign[kind], answers[kind]) if kind in foreign else _survey(kind, entries, timeout_s)
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
    DeviceUnavailableError
        If there is no such kind, its backend cannot be imported, fails or hangs while it looks, or the
        machine has no such device; with the remedy.
    PluginConflictError
        If two distributions declare the kind.
    """
    kind, wanted, entry = read_name(name)
    try:
        with BACKENDS.report_exit_of(entry):
            backend, found, problem = _query_backends(entry, timeout_s)
    except _Broken as broken:
        raise DeviceUnavailableError(
            f"{kind}: its backend {entry.value} ({provider(entry)}) is {broken}"
        ) from broken.__cause__
    for info in found:
        if info.index == wanted:
            return backend, info
    if found:
        names = join_names(info.name for info in found)
        problem = (
            f"the {kind} devices are {names}" if len(found) > 1 else f"the only {kind} device is {names}"
        )
    raise DeviceUnavailableError(f"{kind}:{wanted} is not available: {problem}. See `hyrt devices`")


def read_name(name: str) -> tuple[str, int, EntryPoint]:
    """The kind, the number and the backend that a name like `cpu` or `cuda:0` says; nothing is imported.

    Raises
    ------
    DeviceUnavailableError
        If it cannot be read, or there is no such kind.
    PluginConflictError
        If two distributions declare the kind.
    """
    kind, _, index = name.partition(":")
    kind = BACKENDS.canonical_name(kind)
    # What people call a graphics card, whoever made it.
    entry = BACKENDS.find_entry(kind, nearest="cuda" if kind.lower() in ("gpu", "nvidia") else kind)
    number = parse_int(index or "0")
    if number is None:
        raise DeviceUnavailableError(f"{name!r} {NO_NAME}: {NAME_FORM}")
    return kind, number, entry


class _Broken(Exception):
    """A backend cannot be imported, or fails or hangs while it looks; says which, with the remedy."""


def _query_backends(entry: EntryPoint, timeout_s: float) -> tuple[type[Device], tuple[DeviceInfo, ...], str]:
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
        raise _Broken(_broken(entry, describe_error(errors[0]))) from errors[0]
    if not answers:
        raise _Broken(_hanging(f"no answer within {timeout_s:g} s"))
    return answers[0]


def _brought_in() -> tuple[int, ...]:
    """What grows while modules are imported: their number, and what was read of the disk for them."""
    use = resource.getrusage(resource.RUSAGE_SELF)
    return len(sys.modules), use.ru_majflt, use.ru_inblock


def _query_in_worker(entries: Mapping[str, EntryPoint], timeout_s: float) -> Mapping[str, Answer]:
    # Only who has such a backend waits for what is imported here.
    from hyrt.runtime.isolated_worker import IsolatedWorker

    values = {kind: entry.value for kind, entry in entries.items()}
    with IsolatedWorker() as children:
        return children.query("hyrt.device.discovery", list(entries), limit_s=timeout_s, values=values)


def _broken(entry: EntryPoint, reason: str) -> str:
    return f"broken: {one_line(reason)}{format_remedy(entry)}"


def _hanging(reason: str) -> str:
    return f"hanging: {reason}: restart its driver, or the machine"


def _survey(kind: str, entries: list[EntryPoint], timeout_s: float) -> Survey:
    try:
        entry = BACKENDS.require_single(kind, entries)
    except PluginConflictError as error:
        return Survey(kind, BACKENDS.describe_conflict(entries)[0], problem=str(error))
    try:
        _, found, problem = _query_backends(entry, timeout_s)
    except _Broken as broken:
        return Survey(kind, provider(entry), problem=str(broken))
    return Survey(kind, provider(entry), found, problem)


def _received(entry: EntryPoint, answer: Answer) -> Survey:
    """What a backend has said in another process, or what became of that."""
    from hyrt.runtime.isolated_worker import NOT_STARTED

    why = answer.problem
    if why.startswith("hangs: "):
        why = _hanging(why.removeprefix("hangs: "))
    elif why and not why.startswith(NOT_STARTED):
        why = _broken(entry, why)
    found = () if why else tuple(map(info_of, answer.first_value("found")))
    return Survey(entry.name, provider(entry), found, why or answer.first_value("missing"), is_foreign=True)
