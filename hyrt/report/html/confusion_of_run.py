"""Which classes of the test vertices a run takes for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hyrt.quantities import one_line
from hyrt.report.records.run_record import RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionRow:
    """The test vertices of one class."""

    number: int
    """Of the class."""
    cells: Sequence[tuple[str, int]]
    """By the class that they are taken for: how many, in words, and their part of the class in percent."""
    right: str
    """The part that is taken for this class; empty where the class has no vertex."""

    __repr__ = one_line


def confusion_rows(run: RunRecord) -> list[ConfusionRow]:
    """One row a class, of the best evaluation; empty where the run has not recorded it."""
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
