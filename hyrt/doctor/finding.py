"""What a check found out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "note", "warning", "broken"]
STATES: tuple[State, ...] = ("ok", "note", "warning", "broken")
"""The states from best to worst; only `broken` makes the exit code 1."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One line of a diagnosis.

    Raises
    ------
    ValueError
        If a warning or something broken comes without a remedy.
    """

    check: str
    """The name of the check, for people and programs; several findings may share it."""
    state: State
    """`broken`: a run needs it, and fails; `warning`: a run is slower, or another run would fail; `note`:
    good to know."""
    found: str
    """What is there, or what is wrong, in one line."""
    remedy: str = ""
    """What to do; every warning and everything broken has one."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """What was measured or read, with units in the names."""

    def __post_init__(self) -> None:
        if self.state in ("warning", "broken") and not self.remedy:
            raise ValueError(f"finding {self.check!r}: say what to do about: {self.found}")

    def to_json(self) -> dict[str, Any]:
        """As `hyrt doctor --json` prints it."""
        return {
            "check": self.check,
            "state": self.state,
            "found": self.found,
            "remedy": self.remedy,
            "figures": _finite(self.figures),
        }


_NONE: Mapping[str, Any] = {}


def ok(check: str, found: str, figures: Mapping[str, Any] = _NONE) -> list[DoctorFinding]:
    """All that a check found where everything is as a run needs it."""
    return [DoctorFinding(check, "ok", found, figures=figures)]


def note(check: str, found: str, figures: Mapping[str, Any] = _NONE) -> list[DoctorFinding]:
    """All that a check found where it is good to know."""
    return [DoctorFinding(check, "note", found, figures=figures)]


def warning(check: str, found: str, remedy: str, figures: Mapping[str, Any] = _NONE) -> list[DoctorFinding]:
    """All that a check found where a run is slower, or another run would fail."""
    return [DoctorFinding(check, "warning", found, remedy, figures)]


def broken(check: str, found: str, remedy: str, figures: Mapping[str, Any] = _NONE) -> list[DoctorFinding]:
    """All that a check found where a run fails."""
    return [DoctorFinding(check, "broken", found, remedy, figures)]


def _finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: null."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def exit_code(findings: Sequence[DoctorFinding]) -> int:
    """1 if something a run needs is broken, else 0."""
    return int(any(finding.state == "broken" for finding in findings))
