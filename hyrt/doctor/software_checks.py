"""Checks of installed software: Python, packages, plug-ins, kernel cache, calibration and backends."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from hyrt_perfmodel.user_cache import user_cache_dir

from hyrt import __version__
from hyrt.device.discovery import AUTO, BACKENDS, NAME_FORM, NO_NAME
from hyrt.doctor.finding import DoctorFinding, State, broken, note, ok, warning
from hyrt.doctor.host_checks import find_write_problem
from hyrt.errors import describe_error, one_line
from hyrt.formatting import format_bytes, parse_int
from hyrt.objective.objective import AUTO_OBJECTIVE, DEFAULT_OBJECTIVES
from hyrt.runtime.entry_points import EntryPointGroup, provider
from hyrt.runtime.isolated_worker import Answer, IsolatedWorker

_MIN_PYTHON = (3, 11)
# Import names of packages, if they differ from the package name.
_MODULES = {"pyyaml": "yaml"}


@dataclass(frozen=True, slots=True)
class Requirement:
    """Package that hyrt requires, with its minimum version ("" for any version)."""

    package: str
    minimum: str

    @property
    def module(self) -> str:
        return _MODULES.get(self.package.lower(), self.package.replace("-", "_"))

    def __str__(self) -> str:
        return f"{self.package}>={self.minimum}" if self.minimum else self.package


def check_python() -> list[DoctorFinding]:
    """Check the version of the interpreter."""
    found = f"{platform.python_version()} ({sys.executable})"
    figures = {"version": platform.python_version(), "executable": sys.executable}
    if sys.version_info >= _MIN_PYTHON:
        return ok("python", found, figures)
    minimum = ".".join(map(str, _MIN_PYTHON))
    return broken("python", f"{found} is too old", f"install hyrt for Python {minimum} or newer", figures)


def declared_requirements() -> list[Requirement] | None:
    """Return the requirements of the installed hyrt, without extras; None if hyrt is not installed."""
    try:
        declared = metadata.requires("hyrt") or []
    except metadata.PackageNotFoundError:
        return None
    parsed = []
    for text in declared:
        match = re.match(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^]]*\])?\s*(?:>=\s*([\d.]+))?", text)
        if match and "extra" not in text.partition(";")[2]:
            parsed.append(Requirement(match[1], match[2] or ""))
    return parsed


def check_packages(children: IsolatedWorker, limit_s: float) -> list[DoctorFinding]:
    """Import every required package in the worker process."""
    required = declared_requirements()
    if required is None:
        return broken(
            "packages",
            "hyrt can be imported but is not installed, so it has no backends",
            "pip install hyrt, or pip install -e . in its source folder",
        )
    modules = [requirement.module for requirement in required]
    return evaluate_packages(
        required,
        children.query(
            "hyrt.doctor.software_probes:probe_package", modules, limit_s=limit_s, block_imports=True
        ),
    )


def evaluate_packages(required: Sequence[Requirement], answers: dict[str, Answer]) -> list[DoctorFinding]:
    """Return the findings about the imports. All intact packages share one finding."""
    versions: dict[str, str | None] = {"hyrt": __version__}
    problems = []
    for requirement in required:
        versions[requirement.package] = _installed_version(requirement.package)
        problems += _package_findings(requirement, versions[requirement.package], answers[requirement.module])
    bad = {finding.check.partition(" ")[2] for finding in problems}
    good = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in bad)
    return [*ok("packages", good, {"versions": versions}), *problems]


def _package_findings(requirement: Requirement, version: str | None, answer: Answer) -> list[DoctorFinding]:
    check = f"package {requirement.package}"
    origin = answer.first_value("origin")
    figures = {
        "version": version,
        "origin": origin,
        "import_s": answer.first_value("import_s"),
        "problem": answer.problem,
    }
    reinstall = f"pip install --force-reinstall '{requirement}'"
    if answer.problem and version is None and origin is None:
        return broken(check, "is not installed", f"pip install '{requirement}'", figures)
    if answer.problem:
        found = f"cannot be imported{f' from {origin}' if origin else ''}: {answer.problem}"
        return broken(
            check, found, f"{reinstall}, unless another file at that location shadows the package", figures
        )
    running = answer.first_value("version") or version
    if running is None:
        return []
    if _is_older(running, requirement.minimum):
        found = f"is {running}, but hyrt needs at least {requirement.minimum}"
        return broken(check, found, f"pip install --upgrade '{requirement}'", figures)
    if version is not None and _release(running) != _release(version):
        found = f"reports version {running} ({origin}), but {version} is installed"
        return warning(check, found, f"remove {origin} from the path (PYTHONPATH), or {reinstall}", figures)
    return []


def _installed_version(package: str) -> str | None:
    """Return the installed version, or None if it is missing, as after a damaged installation."""
    try:
        version: str | None = metadata.version(package)
    except (metadata.PackageNotFoundError, KeyError):
        return None
    return version


def _release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version without trailing zeros."""
    match = re.match(r"\d+(?:\.\d+)*", version.strip().removeprefix("v"))
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _is_older(version: str, minimum: str) -> bool:
    return _release(version) < _release(minimum)


_GROUPS = {
    "sampler": EntryPointGroup("hyrt.samplers", "sampler.kind"),
    "model": EntryPointGroup("hyrt.models", "model.kind"),
    "objective": EntryPointGroup("hyrt.objectives", "objective"),
}
# Kinds that a run uses by default.
DEFAULT_KINDS = {"sampler": "neighbor", "model": "graphsage", "objective": AUTO_OBJECTIVE}


def check_plug_ins(kinds: Mapping[str, str]) -> list[DoctorFinding]:
    """Report kinds that two distributions declare, because a run of such a kind fails.

    `kinds` has the `sampler`, `model` and `objective` of the run. Devices are checked with their backends.
    """
    findings = []
    for noun, group in _GROUPS.items():
        for kind, entries in group.entries_by_name().items():
            if len(entries) > 1:
                used_kinds = DEFAULT_OBJECTIVES.values() if kinds[noun] == AUTO_OBJECTIVE else (kinds[noun],)
                state: State = "broken" if kind in used_kinds else "warning"
                owners, remedy = group.describe_conflict(entries)
                found = f"{group.noun} {kind!r} is declared by {owners}"
                findings.append(DoctorFinding("plug-ins", state, found, remedy))
    return findings


# Prefix of the folder that `hyrt.runtime.process_setup` creates if no other folder is writable.
_TEMPORARY = "hyrt-kernels-"
_WRITABLE_REMEDY = "set NUMBA_CACHE_DIR to a writable folder that persists"
_FIRST_REMEDY = "first follow the lines on the packages above"
_MAX_SHOWN = 3


def check_kernel_cache(children: IsolatedWorker, limit_s: float) -> list[DoctorFinding]:
    """Read every cached kernel in the worker process, and test whether its folder is writable.

    If this fails, a second pass checks only the structure of the files. `limit_s` applies to each pass.
    """
    answers = children.query("hyrt.doctor.software_probes:probe_kernel_cache", ["used"], limit_s=limit_s)
    if answers["used"].problem:
        answers |= children.query(
            "hyrt.doctor.software_probes:probe_kernel_cache", ["structure"], limit_s=limit_s
        )
    return evaluate_kernel_cache(answers, os.environ.get("NUMBA_CACHE_DIR"))


def evaluate_kernel_cache(answers: dict[str, Answer], configured: str | None) -> list[DoctorFinding]:
    """Return the findings for the answer `used`, and for the answer `structure` if `used` has a problem.

    `configured` is the value of NUMBA_CACHE_DIR, or None.
    """
    used, structure = answers["used"], answers.get("structure", Answer())
    folders = {entry["folder"]: entry["problem"] for entry in used.messages if "folder" in entry}
    damaged: dict[str, str] = dict(used.first_value("damaged") or {})
    if used.problem:
        damaged |= structure.first_value("damaged") or {}
    figures = {
        "folders": sorted(folders),
        "files": used.first_value("files"),
        "bytes": used.first_value("bytes"),
        "damaged": dict(sorted(damaged.items())),
        "problem": used.problem or structure.problem,
    }
    if damaged:
        names = sorted(damaged)
        rest = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
        found = f"{len(names)} damaged: {', '.join(names[:_MAX_SHOWN])}{rest} ({damaged[names[0]]})"
        if not used.problem:
            return warning("kernel cache", found, "nothing to do: the next run compiles them again", figures)
        # Without its index, a kernel is compiled again, so the whole folder may be deleted.
        return broken(
            "kernel cache", found, _removal_command({str(Path(name).parent) for name in names}), figures
        )
    problem = used.problem or structure.problem
    if problem:
        folders_to_clear = structure.first_value("places")
        remedy = _FIRST_REMEDY + (
            f"; otherwise {_removal_command(folders_to_clear)}" if folders_to_clear else ""
        )
        if "no locator available" in used.problem:
            remedy = _WRITABLE_REMEDY
        return broken("kernel cache", f"the kernels cannot be loaded: {problem}", remedy, figures)
    slow = ""
    unwritable = [problem for problem in folders.values() if problem]
    if configured is not None and Path(configured).name.startswith(_TEMPORARY):
        slow = "no folder for compiled kernels is writable, so every run compiles them again (half a minute)"
    elif unwritable:
        slow = f"{unwritable[0]}: kernels are compiled again in every run"
    elif configured is not None and not any(
        Path(folder).is_relative_to(Path(configured).absolute()) for folder in folders
    ):
        slow = f"NUMBA_CACHE_DIR={configured} cannot be used; using {_shorten(folders)} instead"
    if slow:
        return warning("kernel cache", slow, _WRITABLE_REMEDY, figures)
    found = (
        f"{figures['files']} files, {format_bytes(figures['bytes'] or 0)}, whole and "
        f"writable: {_shorten(folders)}"
    )
    if not figures["files"]:
        found = f"empty and writable: {_shorten(folders)}; the first run compiles for half a minute"
    return ok("kernel cache", found, figures)


def _removal_command(folders: Iterable[str]) -> str:
    places = " ".join(shlex.quote(folder) + "/*.nb[ic]" for folder in sorted(folders))
    return f"rm {places}; the kernels are then compiled again"


def _shorten(folders: dict[str, str]) -> str:
    parent = os.path.commonpath(sorted(folders)) if folders else "nowhere"
    return parent if len(folders) < 2 else f"{len(folders)} folders in {parent}"


_CALIBRATE_HINT = "run `hyrt calibrate` so that runs can start from a prediction"


def check_calibration(children: IsolatedWorker, limit_s: float) -> list[DoctorFinding]:
    """Check which measurements are stored, and whether new measurements can be stored."""
    answers = children.query("hyrt.doctor.software_probes:probe_calibration", ["rates"], limit_s=limit_s)
    return evaluate_calibration(answers["rates"], user_cache_dir() / "hyrt")


def evaluate_calibration(answer: Answer, folder: Path) -> list[DoctorFinding]:
    """Return the findings about the measurements in a folder."""
    devices, reason = answer.first_value("devices") or [], answer.first_value("why") or ""
    calibrated = bool(answer.first_value("calibrated"))
    figures = {"folder": str(folder), "calibrated": calibrated, "devices": devices}
    problem = find_write_problem(folder)
    if problem:
        found = f"measured rates and the calibration cannot be stored: {problem}"
        return warning("kept rates", found, "set XDG_CACHE_HOME to a writable folder", figures)
    if calibrated:
        return ok("kept rates", f"{folder}: this machine is calibrated", figures)
    if reason:
        return note("kept rates", f"{folder}: {reason}", figures)
    if devices:
        measured = f"the rates of {', '.join(devices)} were measured, but this machine is not calibrated"
        return note("kept rates", f"{folder}: {measured}: {_CALIBRATE_HINT}", figures)
    return note("kept rates", f"{folder}: {answer.problem or f'not calibrated: {_CALIBRATE_HINT}'}", figures)


@dataclass(frozen=True, slots=True)
class ProbedBackends:
    """Results of the backend probes."""

    declared: Mapping[str, Sequence[EntryPoint]]
    """Entry points by kind; several entry points of one kind are a conflict."""
    answers: Mapping[str, Answer]
    """Answers of the probed backends, by kind."""
    problem: str = ""
    """Reason why the entry points cannot be read, so that `declared` is empty; "" without a problem."""

    @property
    def devices(self) -> list[Mapping[str, Any]]:
        """All detected devices, as `probe_backend` reports them."""
        return [
            info for answer in self.answers.values() for found in answer.values("found") for info in found
        ]

    @property
    def devices_with_memory(self) -> list[str]:
        """Names of real devices to which mini-batches are copied."""
        return [
            info["name"]
            for info in self.devices
            if not (info["zero_copy"] or info["host_cores"] or info["simulated"])
        ]


def probe_backends(children: IsolatedWorker, limit_s: float, threads: int) -> ProbedBackends:
    """Let every backend detect its devices and train a step on each of them."""
    try:
        entries = BACKENDS.entries_by_name()
    except Exception as error:  # The metadata of any installed distribution may be damaged.
        return ProbedBackends({}, {}, one_line(describe_error(error)))
    kinds = [kind for kind, providers in entries.items() if len(providers) == 1]
    return ProbedBackends(
        entries,
        children.query("hyrt.doctor.device_probes:probe_backend", kinds, limit_s=limit_s, threads=threads),
    )


def evaluate_backends(
    probed: ProbedBackends, requested: Sequence[str], causes: Sequence[DoctorFinding] = ()
) -> list[DoctorFinding]:
    """Return the findings about all backends and devices.

    A failure of a requested device (`kind`, `kind:index` or `auto`) is broken, any other failure a warning.
    If a failure is due to one of `causes` (findings about packages and kernels), it refers to this finding.
    """
    if probed.problem:
        found = f"the entry points of the installed distributions cannot be read: {probed.problem}"
        remedy = "run pip check, and reinstall the distribution whose *.dist-info is damaged"
        return broken("backends", found, remedy)
    findings: list[DoctorFinding] = []
    for kind in sorted(probed.declared):
        # A kind with conflicting declarations was not probed, so the conflict is the only cause.
        reasons = causes if kind in probed.answers else ()
        findings += [
            _refer_to_cause(finding, reasons) for finding in _backend_findings(kind, probed, requested)
        ]
    for name in dict.fromkeys(requested):
        findings += _missing_device_findings(name, probed)
    if AUTO in requested and not any(
        finding.state == "ok" and finding.figures.get("computes") for finding in findings
    ):
        found = "devices=auto found no device that can train"
        findings += broken("devices", found, "see the lines on each backend above")
    return findings


def _backend_findings(kind: str, backends: ProbedBackends, requested: Sequence[str]) -> list[DoctorFinding]:
    check = f"backend {kind}"
    kinds = {name.partition(":")[0] for name in requested}
    state: State = "broken" if kind in kinds else "warning"
    if kind not in backends.answers:
        owners, remedy = BACKENDS.describe_conflict(list(backends.declared[kind]))
        return [DoctorFinding(check, state, f"is declared by {owners}", remedy)]
    answer = backends.answers[kind]
    package = provider(backends.declared[kind][0])
    figures = {"provider": package, "devices": answer.first_value("found") or []}
    missing = answer.first_value("missing")
    if missing is not None:
        # If the settings name a missing device, this is a separate finding.
        return note(check, one_line(str(missing)), figures)
    findings = [
        each
        for info in answer.first_value("found") or ()
        for each in _device_findings(info, answer, kind in kinds, AUTO in kinds)
    ]
    if answer.problem and not any(finding.state != "ok" for finding in findings):
        found, remedy = f"{package}: {answer.problem}", _backend_remedy(kind, answer.problem, package)
        findings.append(DoctorFinding(check, state, found, remedy, figures))
    return findings


def _refer_to_cause(finding: DoctorFinding, causes: Sequence[DoctorFinding]) -> DoctorFinding:
    """Point to the cause if a finding repeats its problem, or if the kernel cache is damaged."""
    bad = [cause for cause in causes if finding.remedy and cause.state == "broken"]
    repeated = [each for each in bad if finding.found.endswith(each.figures.get("problem") or "\0")]
    for cause in [*repeated, *(each for each in bad if each.figures.get("damaged"))]:
        return replace(finding, remedy=f"first follow the line on {cause.check} above")
    return finding


def _device_findings(info: Mapping[str, Any], answer: Answer, named: bool, auto: bool) -> list[DoctorFinding]:
    """Return the findings about a device; empty if it was not tested because it shares cores."""
    name = info["name"]
    events = [event for event in answer.messages if event.get("device") == name]
    if not events:
        return []
    check = f"device {name}"
    last = events[-1]
    figures = {key: value for key, value in info.items() if key != "name"}
    if last["event"] == "trained":
        figures |= {key: last[key] for key in ("computes", "losses", "open_s", "seconds")}
        outcome = (
            f"trained two steps in {last['seconds']:.1f} s, with the same sums as in float64"
            if last["computes"]
            else "receives and returns mini-batches (simulated)"
        )
        return ok(check, f"{info['description']}: {outcome}", figures)
    reason = last.get("why") or answer.problem
    # `auto` uses the CPU and every real device that does not share its cores.
    needed = named or (auto and not info["simulated"] and (not info["host_cores"] or info["kind"] == "cpu"))
    state: State = "broken" if needed else "warning"
    found = f"{info['description']}: a training step fails: {one_line(reason)}"
    remedy = f"{_backend_remedy(info['kind'], reason, '')}; for details, run python -m hyrt.testing {name}"
    return [DoctorFinding(check, state, found, remedy, figures)]


def _missing_device_findings(name: str, backends: ProbedBackends) -> list[DoctorFinding]:
    """Check a device in the settings that was not found."""
    kind, _, index_text = name.partition(":")
    if name == AUTO or (kind in backends.declared and kind not in backends.answers):
        return []
    check = f"device {name}"
    if kind not in backends.declared:
        kinds = ", ".join(sorted(backends.declared)) or "none"
        remedy = f"use one of these kinds: {kinds}; or install the package that provides it"
        return broken(check, f"there is no backend {kind!r}", remedy)
    answer = backends.answers[kind]
    infos = answer.first_value("found")
    if infos is None and answer.problem:
        return []  # The finding about the backend covers this.
    indices = {info["index"] for info in infos or ()}
    index = parse_int(index_text or "0")
    if index is None:
        return broken(check, NO_NAME, NAME_FORM)
    if index in indices:
        return []
    reason = answer.first_value("missing") or f"there are only {len(indices)} of this kind"
    remedy = "run without it (--devices), or make it available: see hyrt devices"
    return broken(check, f"is not available: {one_line(str(reason))}", remedy)


def _backend_remedy(kind: str, problem: str, package: str) -> str:
    if problem.startswith(("hangs", "did not end")):
        return f"restart the driver of {kind}, or the machine; until then, use other --devices"
    if package and not package.startswith("hyrt "):
        return f"update or uninstall {package}; until then, use other --devices"
    return f"update or reinstall the driver and the packages of {kind}; until then, use other --devices"
