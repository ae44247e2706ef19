"""Checks of Python and of the packages that hyrt requires: versions and imports."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from hyrt import __version__
from hyrt.doctor.finding import DoctorFinding, broken, ok, warning
from hyrt.machine.child_processes.children import Answer, Children

_MIN_PYTHON = (3, 11)
# Import names that differ from the package name.
_MODULES = {"pyyaml": "yaml"}


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package that hyrt requires, with its minimum version (empty for any)."""

    package: str
    least: str

    @property
    def module(self) -> str:
        return _MODULES.get(self.package.lower(), self.package.replace("-", "_"))

    def __str__(self) -> str:
        return f"{self.package}>={self.least}" if self.least else self.package


def check_python() -> list[DoctorFinding]:
    """Check the version of the interpreter."""
    found = f"{platform.python_version()} ({sys.executable})"
    figures = {"version": platform.python_version(), "executable": sys.executable}
    if sys.version_info >= _MIN_PYTHON:
        return ok("python", found, figures)
    minimum = ".".join(map(str, _MIN_PYTHON))
    return broken("python", f"{found} is too old", f"install hyrt for Python {minimum} or newer", figures)


def requirements() -> list[Requirement] | None:
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


def check_packages(children: Children, limit_s: float) -> list[DoctorFinding]:
    """Import every required package in the worker process."""
    required = requirements()
    if required is None:
        return broken(
            "packages",
            "hyrt is on the path but not installed, so no backends are declared",
            "pip install hyrt, or pip install -e . in its source folder",
        )
    modules = [requirement.module for requirement in required]
    return judge_packages(
        required,
        children.ask("hyrt.doctor.children.packages:probe_package", modules, limit_s=limit_s, bar=True),
    )


def judge_packages(wanted: Sequence[Requirement], answers: dict[str, Answer]) -> list[DoctorFinding]:
    """Return findings for the imports; all intact packages share one finding."""
    versions: dict[str, str | None] = {"hyrt": __version__}
    problems = []
    for requirement in wanted:
        versions[requirement.package] = _installed_version(requirement.package)
        problems += _package_findings(requirement, versions[requirement.package], answers[requirement.module])
    bad = {finding.check.partition(" ")[2] for finding in problems}
    good = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in bad)
    return [*ok("packages", good, {"versions": versions}), *problems]


def _package_findings(requirement: Requirement, version: str | None, answer: Answer) -> list[DoctorFinding]:
    check = f"package {requirement.package}"
    origin = answer.first("origin")
    figures = {
        "version": version,
        "origin": origin,
        "import_s": answer.first("import_s"),
        "problem": answer.problem,
    }
    reinstall = f"pip install --force-reinstall '{requirement}'"
    if answer.problem and version is None and origin is None:
        return broken(check, "is not installed", f"pip install '{requirement}'", figures)
    if answer.problem:
        found = f"cannot be imported{f' from {origin}' if origin else ''}: {answer.problem}"
        return broken(check, found, f"{reinstall}, unless something at that place hides the package", figures)
    running = answer.first("version") or version
    if running is None:
        return []
    if _is_older(running, requirement.least):
        found = f"is {running}, but hyrt needs {requirement.least} or newer"
        return broken(check, found, f"pip install --upgrade '{requirement}'", figures)
    if version is not None and _release(running) != _release(version):
        found = f"reports version {running} ({origin}), but {version} is installed"
        return warning(check, found, f"remove {origin} from the path (PYTHONPATH), or {reinstall}", figures)
    return []


def _installed_version(package: str) -> str | None:
    """Return the installed version; None if there is none, as in a damaged installation."""
    try:
        version: str | None = metadata.version(package)
    except (metadata.PackageNotFoundError, KeyError):
        return None
    return version


def _release(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, without trailing zeros."""
    match = re.match(r"\d+(?:\.\d+)*", version.strip().removeprefix("v"))
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _is_older(version: str, minimum: str) -> bool:
    return _release(version) < _release(minimum)
