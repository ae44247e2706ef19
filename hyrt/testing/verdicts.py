"""Verdicts of checks, and the report of all verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hyrt.errors import HyrtError

Outcome = Literal["passed", "failed", "skipped"]


class Failed(Exception):
    """Raised by a check if the device violates the protocol."""


class Skipped(Exception):
    """Raised by a check that does not apply to the device, with the reason."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Outcome of one check."""

    name: str
    """Description of the requirement."""
    outcome: Outcome
    """`passed`, `failed` or `skipped`."""
    detail: str = ""
    """Expected and actual behaviour, or the reason for skipping."""
    seconds: float = 0.0
    """Duration of the check."""

    def __str__(self) -> str:
        word = self.outcome.upper() if self.outcome == "failed" else self.outcome
        return f"{word:<8} {self.name}{': ' if self.detail else ''}{self.detail}"


@dataclass(frozen=True, slots=True)
class Report:
    """All verdicts about one device; as text, one line per verdict."""

    device: str
    """Name and description of the device."""
    verdicts: tuple[Verdict, ...]
    """Verdicts, in the order of the checks."""

    @property
    def passed(self) -> tuple[Verdict, ...]:
        return self._having("passed")

    @property
    def failed(self) -> tuple[Verdict, ...]:
        return self._having("failed")

    @property
    def skipped(self) -> tuple[Verdict, ...]:
        return self._having("skipped")

    def _having(self, outcome: Outcome) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.outcome == outcome)

    def __str__(self) -> str:
        counts = f"{len(self.passed)} passed, {len(self.skipped)} skipped, {len(self.failed)} failed"
        return "\n".join([f"{self.device}: {counts}", *(f"  {verdict}" for verdict in self.verdicts)])


class ConformanceError(HyrtError):
    """Raised if a device violates the protocol; the message has one line for each distinct failure.

    Parameters
    ----------
    report
        All verdicts.
    """

    has_lines = True

    def __init__(self, report: Report) -> None:
        self.report = report
        alike: dict[str, list[str]] = {}
        for verdict in report.failed:
            alike.setdefault(verdict.detail, []).append(verdict.name)
        lines = [f"  {', '.join(names)}: {detail}" for detail, names in alike.items()]
        super().__init__(
            f"{report.device} does not follow the device protocol: {len(report.failed)} of "
            f"{len(report.verdicts)} checks failed:\n" + "\n".join(lines)
        )
