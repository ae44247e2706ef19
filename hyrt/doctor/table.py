"""Text output of findings; the state is printed as a word, so that colour is optional."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence

from hyrt.doctor.finding import STATES, DoctorFinding, State

_STATE_WIDTH = max(map(len, STATES))
_CHECK_WIDTH = 15
_MIN_WIDTH = 60
# SGR codes: green, cyan, yellow, bold red.
_COLOURS: dict[State, str] = {"ok": "32", "note": "36", "warning": "33", "broken": "1;31"}


def finding_lines(finding: DoctorFinding, width: int, *, coloured: bool) -> list[str]:
    """Return the lines of one finding, wrapped to the output width unless that is below `_MIN_WIDTH`."""
    state = finding.state.ljust(_STATE_WIDTH)
    if coloured:
        state = f"\x1b[{_COLOURS[finding.state]}m{state}\x1b[0m"
    start = _STATE_WIDTH + 2 + _CHECK_WIDTH + 2
    first, *more = _wrapped(finding.found, start, width)
    more += _wrapped(f"do: {finding.remedy}", start, width) if finding.remedy else []
    return [f"{state}  {finding.check.ljust(_CHECK_WIDTH)}  {first}", *(" " * start + text for text in more)]


def last_line(findings: Sequence[DoctorFinding], seconds: float) -> str:
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
