"""Parsing of device names and shares in `--devices`, probing of installed backends, and selection by name."""

from __future__ import annotations

import math
import resource
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from hyrt.device import Device, DeviceInfo, Rates
from hyrt.device.capabilities import missing_reason
from hyrt.errors import DeviceUnavailableError, PluginConflictError, describe_error, join_names, one_line
from hyrt.formatting import parse_int
from hyrt.runtime.entry_points import EntryPointGroup, format_remedy, is_third_party, provider

if TYPE_CHECKING:
    from hyrt.runtime.isolated_worker import Answer


AUTO = "auto"
NO_NAME = "is not a device name"
NAME_FORM = "use kind or kind:number, such as cpu or cuda:0"


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """One entry of the `devices` setting."""

    name: str
    """Device name: `kind` or `kind:index`."""
    share: float | None
    """Relative weight of the device's part of a step, or None if all devices get equal parts."""


def parse_request(entry: str) -> DeviceRequest:
    """Parse an entry of the form `name` or `name=share`.

    Raises ValueError if the name is missing, or the share is not a number of at least 0.
    """
    name, equals, text = entry.partition("=")
    if not name.strip():
        raise ValueError(f"{entry!r} {NO_NAME}: {NAME_FORM}")
    name = AUTO if name.strip().lower() == AUTO else name.strip()
    if not equals:
        return DeviceRequest(name, None)
    try:
        # float() also accepts underscores and digits of other scripts, so reject both first.
        share = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        share = math.nan
    if not (math.isfinite(share) and share >= 0):
        raise ValueError(
            f"the share in {entry!r} must be a number of at least 0: write shares as in cpu=1,cuda:0=3"
        )
    return DeviceRequest(name, share)


def parse_requests(entries: Sequence[str]) -> list[DeviceRequest]:
    """Parse all entries of the `devices` setting.

    Raises ValueError if only some entries have a share, all shares are zero, or `auto` is not the only entry.
    """
    requests = [parse_request(entry) for entry in entries]
    if len(requests) > 1 and any(request.name == AUTO for request in requests):
        raise ValueError("auto cannot be combined with other devices: use auto alone, or list devices")
    if requests[0].name == AUTO and requests[0].share is not None:
        raise ValueError("auto cannot have a share, because it chooses the shares: use auto without a share")
    shares = [request.share for request in requests]
    explicit = [share for share in shares if share is not None]
    if explicit and len(explicit) < len(shares):
        raise ValueError(
            "some devices have a share and some have none: set a share for all or none, as in cpu=1,cuda:0=3"
        )
    if explicit and not any(explicit):
        raise ValueError("all shares are 0: set at least one share above 0")
    return requests


def split_by_shares(total: int, shares: Sequence[float]) -> list[int]:
    """Divide a step's units in proportion to shares by the largest remainder method, which is deterministic.

    A device with a share above 0 gets at least one unit if there are enough units.
    """
    # Divide by the largest share first: the sum of large finite shares could overflow.
    largest = max(shares)
    parts = [share / largest for share in shares]
    whole = math.fsum(parts)
    exact = [total * part / whole for part in parts]
    split = [math.floor(part) for part in exact]
    order = sorted(range(len(shares)), key=lambda i: (split[i] - exact[i], i))
    for i in order[: total - sum(split)]:
        split[i] += 1
    for i, share in enumerate(shares):
        largest_part = max(range(len(split)), key=lambda j: split[j])
        if share > 0 and split[i] == 0 and split[largest_part] > 1:
            split[largest_part] -= 1
            split[i] = 1
    return split


def probed(entry: EntryPoint) -> tuple[type[Device], tuple[DeviceInfo, ...], str]:
    """Return a backend, its devices, and the reason if there are no devices.

    Exceptions from importing and probing are not caught. Raises DeviceUnavailableError if a device
    description is invalid, such as two devices with one index.
    """
    backend: type[Device] = entry.load()
    found = tuple(backend.probe())
    _check_found(entry.name, found)
    return backend, found, "" if found else missing_reason(backend)


def _check_found(kind: str, found: Sequence[DeviceInfo]) -> None:
    for info in found:
        if not isinstance(info, DeviceInfo):
            raise DeviceUnavailableError(
                f"its probe returned {type(info).__name__} {info!r}, expected a DeviceInfo"
            )
        if info.kind != kind:
            raise DeviceUnavailableError(
                f"its probe returned a device of kind {info.kind!r}, expected {kind!r}"
            )
    numbers = [info.index for info in found]
    for number in numbers:
        if numbers.count(number) > 1:
            raise DeviceUnavailableError(f"its probe returned two devices with the number {number}")


def answer(item: str, say: Callable[..., None], *, values: Mapping[str, str]) -> None:
    """Report the devices that an entry point finds, and the reason if there are no devices.

    `values` maps a device kind to its entry point, `module:Class`. The report contains `found`, which
    `info_of` reads, and `missing`. Runs in a child process: see `hyrt.runtime.isolated_worker`.
    """
    _, found, missing = probed(EntryPoint(item, values[item], "hyrt.devices"))
    say(found=[asdict(info) for info in found], missing=missing)


def info_of(report: Mapping[str, Any]) -> DeviceInfo:
    """Return the device description from a child process's report."""
    known = {field.name: report[field.name] for field in fields(DeviceInfo)}
    rates = None if report["rates"] is None else Rates(**report["rates"])
    return DeviceInfo(**{**known, "forms": tuple(report["forms"]), "rates": rates})


BACKENDS = EntryPointGroup(
    "hyrt.devices", "device kind", DeviceUnavailableError, docs_hint="See `hyrt devices`"
)

# Time limit for drivers that hang during probing: the command that lists devices must end.
_PROBE_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Probe result of one declared backend."""

    kind: str
    provider: str
    """Name and version of the Python distribution that declares the backend."""
    found: tuple[DeviceInfo, ...] = ()
    problem: str = ""
    """One line with the reason and the remedy if no device was found, otherwise empty."""
    is_foreign: bool = False
    """Whether a distribution other than hyrt declares the backend."""


def survey_devices(timeout_s: float = _PROBE_TIMEOUT_S) -> list[ProbeResult]:
    """Probe every declared backend. The result of a broken backend contains the reason.

    Backends of other distributions are probed in a child process, because a driver library might end its
    process.
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
    """Return the backend and the device for a name such as `cpu` or `cuda:0`.

    `timeout_s` limits the probe of a backend. Importing the backend may take longer if each interval of this
    length imports a module or reads from disk. Raises DeviceUnavailableError with the remedy if the kind is
    unknown, its backend cannot be imported, fails or hangs, or the machine has no such device. Raises
    PluginConflictError if two distributions declare the kind.
    """
    kind, index, entry = read_name(name)
    try:
        with BACKENDS.report_exit_of(entry):
            backend, found, problem = _query_backends(entry, timeout_s)
    except _BrokenBackendError as broken:
        raise DeviceUnavailableError(
            f"the backend of {kind}, {entry.value} ({provider(entry)}), is {broken}"
        ) from broken.__cause__
    for info in found:
        if info.index == index:
            return backend, info
    if found:
        names = join_names(info.name for info in found)
        problem = (
            f"the {kind} devices are {names}" if len(found) > 1 else f"the only {kind} device is {names}"
        )
    raise DeviceUnavailableError(f"{kind}:{index} is not available ({problem}): see `hyrt devices`")


def read_name(name: str) -> tuple[str, int, EntryPoint]:
    """Parse a name such as `cpu` or `cuda:0` into kind, index and backend entry point, without importing it.

    Raises DeviceUnavailableError for an invalid name or an unknown kind, and PluginConflictError if two
    distributions declare the kind.
    """
    kind, _, index = name.partition(":")
    kind = BACKENDS.canonical_name(kind)
    # Users may name graphics cards "gpu" or "nvidia", so suggest cuda.
    entry = BACKENDS.find_entry(kind, nearest="cuda" if kind.lower() in ("gpu", "nvidia") else kind)
    number = parse_int(index or "0")
    if number is None:
        raise DeviceUnavailableError(f"{name!r} {NO_NAME}: {NAME_FORM}")
    return kind, number, entry


class _BrokenBackendError(Exception):
    """Import failure of a backend, or failure or hang of its probe. The message contains the remedy."""


def _query_backends(entry: EntryPoint, timeout_s: float) -> tuple[type[Device], tuple[DeviceInfo, ...], str]:
    """Import a backend and probe its devices with a time limit; raise _BrokenBackendError on any failure."""
    answers: list[tuple[type[Device], tuple[DeviceInfo, ...], str]] = []
    errors: list[BaseException] = []
    imported = threading.Event()

    def look() -> None:
        try:
            entry.load()
            imported.set()
            answers.append(probed(entry))
        except BaseException as error:
            # A plug-in may raise any exception, including SystemExit. Each means that the plug-in is broken.
            errors.append(error)
            imported.set()

    # A thread that hangs in a driver cannot be stopped, but a daemon thread does not keep the process alive.
    thread = threading.Thread(target=look, name=f"hyrt.probe.{entry.name}", daemon=True)
    before = _brought_in()
    thread.start()
    # Allow a slow import that makes progress: torch reads hundreds of megabytes, which can take minutes.
    while not imported.wait(timeout_s):
        now = _brought_in()
        if now == before:
            raise _BrokenBackendError(_hanging(f"its import has made no progress for {timeout_s:g} s"))
        before = now
    thread.join(timeout_s)
    if errors:
        raise _BrokenBackendError(_broken(entry, describe_error(errors[0]))) from errors[0]
    if not answers:
        raise _BrokenBackendError(_hanging(f"no answer within {timeout_s:g} s"))
    return answers[0]


def _brought_in() -> tuple[int, ...]:
    """Return counters that grow during an import: imported modules, major page faults and disk reads."""
    use = resource.getrusage(resource.RUSAGE_SELF)
    return len(sys.modules), use.ru_majflt, use.ru_inblock


def _query_in_worker(entries: Mapping[str, EntryPoint], timeout_s: float) -> Mapping[str, Answer]:
    # Import lazily: only needed if there are backends of other distributions.
    from hyrt.runtime.isolated_worker import IsolatedWorker

    values = {kind: entry.value for kind, entry in entries.items()}
    with IsolatedWorker() as children:
        return children.query("hyrt.device.discovery", list(entries), limit_s=timeout_s, values=values)


def _broken(entry: EntryPoint, reason: str) -> str:
    return f"broken ({one_line(reason)}){format_remedy(entry)}"


def _hanging(reason: str) -> str:
    return f"hanging ({reason}): restart its driver, or the machine"


def _survey(kind: str, entries: list[EntryPoint], timeout_s: float) -> ProbeResult:
    try:
        entry = BACKENDS.require_single(kind, entries)
    except PluginConflictError as error:
        return ProbeResult(kind, BACKENDS.describe_conflict(entries)[0], problem=str(error))
    try:
        _, found, problem = _query_backends(entry, timeout_s)
    except _BrokenBackendError as broken:
        return ProbeResult(kind, provider(entry), problem=str(broken))
    return ProbeResult(kind, provider(entry), found, problem)


def _received(entry: EntryPoint, answer: Answer) -> ProbeResult:
    """Convert the report of a child process, or its failure, into the backend's ProbeResult."""
    from hyrt.runtime.isolated_worker import NOT_STARTED

    problem = answer.problem
    if problem.startswith("hangs: "):
        problem = _hanging(problem.removeprefix("hangs: "))
    elif problem and not problem.startswith(NOT_STARTED):
        problem = _broken(entry, problem)
    found = () if problem else tuple(map(info_of, answer.first_value("found")))
    return ProbeResult(
        entry.name, provider(entry), found, problem or answer.first_value("missing"), is_foreign=True
    )
