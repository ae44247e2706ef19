"""Findings of `hyrt doctor` and their states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "note", "warning", "broken"]
STATES: tuple[State, ...] = ("ok", "note", "warning", "broken")
"""All states, from best to worst; only `broken` makes the exit code 1."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """Result of one check.

    Raises
    ------
    ValueError
        If a finding with state `warning` or `broken` has no remedy.
    """

    check: str
    """Name of the check; several findings may share it."""
    state: State
    """`broken`: a run needs this and would fail; `warning`: a run is slower, or some other run would fail;
    `note`: information only.
    """
    found: str
    """State or problem found, in one line."""
    remedy: str = ""
    """Suggested action; required for warnings and broken checks."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Measured or read values, with units in the keys."""

    def __post_init__(self) -> None:
        if self.state in ("warning", "broken") and not self.remedy:
            raise ValueError(f"finding {self.check!r}: remedy is missing for: {self.found}")

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object of `hyrt doctor --json`."""
        return {
            "check": self.check,
            "state": self.state,
            "found": self.found,
            "remedy": self.remedy,
            "figures": _finite(self.figures),
        }


_NO_FIGURES: Mapping[str, Any] = {}


def ok(check: str, found: str, figures: Mapping[str, Any] = _NO_FIGURES) -> list[DoctorFinding]:
    """Return a single finding: no problem."""
    return [DoctorFinding(check, "ok", found, figures=figures)]


def note(check: str, found: str, figures: Mapping[str, Any] = _NO_FIGURES) -> list[DoctorFinding]:
    """Return a single finding: information only."""
    return [DoctorFinding(check, "note", found, figures=figures)]


def warning(
    check: str, found: str, remedy: str, figures: Mapping[str, Any] = _NO_FIGURES
) -> list[DoctorFinding]:
    """Return a single finding: a run is slower, or some other run would fail."""
    return [DoctorFinding(check, "warning", found, remedy, figures)]


def broken(
    check: str, found: str, remedy: str, figures: Mapping[str, Any] = _NO_FIGURES
) -> list[DoctorFinding]:
    """Return a single finding: a run fails."""
    return [DoctorFinding(check, "broken", found, remedy, figures)]


def _finite(value: Any) -> Any:
    """Replace infinity and NaN, which JSON lacks, by None."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def exit_code(findings: Sequence[DoctorFinding]) -> int:
    """Return 1 if any check is broken, otherwise 0."""
    return int(any(finding.state == "broken" for finding in findings))
