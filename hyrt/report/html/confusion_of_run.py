"""Confusion matrix of the test vertices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hyrt.quantities import one_line
from hyrt.report.records.run_record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionRow:
    """Test vertices of one class."""

    number: int
    """Number of the class."""
    cells: Sequence[tuple[str, int]]
    """For each predicted class: number of vertices as text, and percentage of the class."""
    right: str
    """Fraction that is predicted correctly; empty if the class has no vertices."""

    __repr__ = one_line


def confusion_rows(run: RunRecord) -> list[ConfusionRow]:
    """Return one row per class for the best evaluation; empty if no confusion matrix was recorded."""
    best = [line["confusion"] for line in run.of("evaluated") if line["is_best"] and line.get("confusion")]
    rows = []
    for number, counts in enumerate(best[-1] if best else []):
        total = sum(counts)
        rows.append(
            ConfusionRow(
                number=number,
                cells=[(f"{count:,}", round(100 * count / (total or 1))) for count in counts],
                right=f"{counts[number] / total:.0%}" if total else "",
            )
        )
    return rows
