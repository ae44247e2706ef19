"""Findings of `hyrt doctor`, and their text output, which names the state so that colour is optional."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["ok", "note", "warning", "broken"]
STATES: tuple[State, ...] = ("ok", "note", "warning", "broken")
"""All states, from best to worst. Only `broken` makes the exit code 1."""


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    """Result of a check. Raises ValueError if a warning or a broken check has no remedy."""

    check: str
    """Name of the check; several findings may share it."""
    state: State
    """`broken` if the run would fail, `warning` if it is slower or others would fail, `note` for information.
    """
    found: str
    """State or problem in one line."""
    remedy: str = ""
    """Suggested action; required for `warning` and `broken`."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Values that were measured or read, with units in the keys."""

    def __post_init__(self) -> None:
        if self.state in ("warning", "broken") and not self.remedy:
            raise ValueError(f"finding {self.check!r} has no remedy: {self.found}")

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
    """Return a list with one finding without a problem."""
    return [DoctorFinding(check, "ok", found, figures=figures)]


def note(check: str, found: str, figures: Mapping[str, Any] = _NO_FIGURES) -> list[DoctorFinding]:
    """Return a list with one finding that is only information."""
    return [DoctorFinding(check, "note", found, figures=figures)]


def warning(
    check: str, found: str, remedy: str, figures: Mapping[str, Any] = _NO_FIGURES
) -> list[DoctorFinding]:
    """Return a list with one finding about a slower run, or a failure of other runs."""
    return [DoctorFinding(check, "warning", found, remedy, figures)]


def broken(
    check: str, found: str, remedy: str, figures: Mapping[str, Any] = _NO_FIGURES
) -> list[DoctorFinding]:
    """Return a list with one finding about a run that would fail."""
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


_STATE_WIDTH = max(map(len, STATES))
_CHECK_WIDTH = 15
_MIN_WIDTH = 60
# SGR colour codes: green, cyan, yellow and bold red.
_COLOURS: dict[State, str] = {"ok": "32", "note": "36", "warning": "33", "broken": "1;31"}


def finding_lines(finding: DoctorFinding, width: int, *, coloured: bool) -> list[str]:
    """Return the lines of a finding, wrapped to the output width unless it is less than `_MIN_WIDTH`."""
    state = finding.state.ljust(_STATE_WIDTH)
    if coloured:
        state = f"\x1b[{_COLOURS[finding.state]}m{state}\x1b[0m"
    start = _STATE_WIDTH + 2 + _CHECK_WIDTH + 2
    first, *more = _wrapped(finding.found, start, width)
    more += _wrapped(f"do: {finding.remedy}", start, width) if finding.remedy else []
    return [f"{state}  {finding.check.ljust(_CHECK_WIDTH)}  {first}", *(" " * start + text for text in more)]


def summary_line(findings: Sequence[DoctorFinding], seconds: float) -> str:
    """Return the number of findings per state, and whether a run can start."""
    counts = Counter(finding.state for finding in findings)
    parts = [
        f"{counts[state]} {_plural(state, counts[state])}" for state in reversed(STATES) if counts[state]
    ]
    verdict = "a run with these settings cannot work" if counts["broken"] else "a run can start"
    return f"{', '.join(parts)} in {seconds:.1f} s: {verdict}"


def _plural(state: State, count: int) -> str:
    return f"{state}s" if state in ("note", "warning") and count > 1 else state


def _wrapped(text: str, start: int, width: int) -> list[str]:
    if width < _MIN_WIDTH:
        return [text]
    return textwrap.wrap(text, width - start, break_long_words=False, break_on_hyphens=False) or [""]
