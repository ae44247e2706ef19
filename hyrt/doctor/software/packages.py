"""Python and the packages hyrt needs: their versions, and whether they can be imported."""

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

_OLDEST_PYTHON = (3, 11)
# Where the name to import is not that of the package.
_MODULES = {"pyyaml": "yaml"}


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package hyrt needs, and the least version; empty for any."""

    package: str
    least: str

    @property
    def module(self) -> str:
        return _MODULES.get(self.package.lower(), self.package.replace("-", "_"))

    def __str__(self) -> str:
        return f"{self.package}>={self.least}" if self.least else self.package


def check_python() -> list[DoctorFinding]:
    """The interpreter's version."""
    found = f"{platform.python_version()} ({sys.executable})"
    figures = {"version": platform.python_version(), "executable": sys.executable}
    if sys.version_info >= _OLDEST_PYTHON:
        return ok("python", found, figures)
    least = ".".join(map(str, _OLDEST_PYTHON))
    return broken("python", f"{found} is too old", f"install hyrt for Python {least} or newer", figures)


def requirements() -> list[Requirement] | None:
    """What the installed hyrt declares it needs, without extras; None where it is not installed."""
    try:
        declared = metadata.requires("hyrt") or []
    except metadata.PackageNotFoundError:
        return None
    found = []
    for text in declared:
        match = re.match(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^]]*\])?\s*(?:>=\s*([\d.]+))?", text)
        if match and "extra" not in text.partition(";")[2]:
            found.append(Requirement(match[1], match[2] or ""))
    return found


def check_packages(children: Children, limit_s: float) -> list[DoctorFinding]:
    """Every package that hyrt needs, imported in a child process."""
    wanted = requirements()
    if wanted is None:
        return broken(
            "packages",
            "hyrt is on the path but not installed, so no backends are declared",
            "pip install hyrt, or pip install -e . in its source folder",
        )
    modules = [each.module for each in wanted]
    return judge_packages(
        wanted, children.ask("hyrt.doctor.children.packages", modules, limit_s=limit_s, bar=True)
    )


def judge_packages(wanted: Sequence[Requirement], answers: dict[str, Answer]) -> list[DoctorFinding]:
    """Findings from what the imports said; all good packages are one."""
    versions: dict[str, str | None] = {"hyrt": __version__}
    problems = []
    for each in wanted:
        versions[each.package] = _installed(each.package)
        problems += _problems(each, versions[each.package], answers[each.module])
    bad = {finding.check.partition(" ")[2] for finding in problems}
    good = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in bad)
    return [*ok("packages", good, {"versions": versions}), *problems]


def _problems(wanted: Requirement, version: str | None, answer: Answer) -> list[DoctorFinding]:
    check = f"package {wanted.package}"
    origin = answer.first("origin")
    figures = {
        "version": version,
        "origin": origin,
        "import_s": answer.first("import_s"),
        "problem": answer.problem,
    }
    again = f"pip install --force-reinstall '{wanted}'"
    if answer.problem and version is None and origin is None:
        return broken(check, "is not installed", f"pip install '{wanted}'", figures)
    if answer.problem:
        found = f"cannot be imported{f' from {origin}' if origin else ''}: {answer.problem}"
        return broken(check, found, f"{again}, unless something at that place hides the package", figures)
    running = answer.first("version") or version
    if running is None:
        return []
    if _is_older(running, wanted.least):
        found = f"is {running}, but hyrt needs {wanted.least} or newer"
        return broken(check, found, f"pip install --upgrade '{wanted}'", figures)
    if version is not None and _release(running) != _release(version):
        found = f"reports version {running} ({origin}), but {version} is installed"
        return warning(check, found, f"remove {origin} from the path (PYTHONPATH), or {again}", figures)
    return []


def _installed(package: str) -> str | None:
    """A damaged installation may have metadata without a version."""
    try:
        version: str | None = metadata.version(package)
    except (metadata.PackageNotFoundError, KeyError):
        return None
    return version


def _release(version: str) -> tuple[int, ...]:
    """The numbers a version starts with, without zeros at the end."""
    match = re.match(r"\d+(?:\.\d+)*", version.strip().removeprefix("v"))
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _is_older(version: str, least: str) -> bool:
    return _release(version) < _release(least)
