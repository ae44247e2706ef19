"""The live picture of a run: its pipeline stage by stage, and what every trainer does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyrt.report.progress_line import bar, milliseconds, step_line
from hyrt.runtime.events import StepGroup

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_STAGES = ("sample", "load", "transfer", "propagate", "synchronize")
_BAR = 10


def dashboard(group: StepGroup, *, epochs: int, predicted_s: float | None, width: int) -> Group:
    """A few lines for the newest steps.

    Parameters
    ----------
    group
        The steps.
    epochs
        Of the run.
    predicted_s
        What a step was expected to take; None where nothing was.
    width
        Columns of the terminal; below 70 the stages stand below each other, below 56 without what
        they wait for.
    """
    from rich.console import Group
    from rich.text import Text

    expected = "" if predicted_s is None else f" (predicted {milliseconds(predicted_s)})"
    first = Text(step_line(group, epochs, width), no_wrap=True, overflow="crop")
    first.highlight_regex(r"[━]+", "green")
    return Group(
        first,
        Text(
            f"a step takes {milliseconds(group.step_s)} ms{expected}, step {group.step:,} of the run",
            style="dim",
        ),
        _pipeline(group) if width >= 70 else _stages_below(group, waits=width >= 56),
        _trainers(group, min(2 * _BAR, width // 4)),
    )


def _pipeline(group: StepGroup) -> Table:
    """The stages beside each other: threads, work as a bar against the slowest stage, milliseconds, and what they wait for."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for _ in _STAGES:
        table.add_column(no_wrap=True, min_width=_BAR + 2)
    cells = [_cells(group, stage) for stage in _STAGES]
    for row in range(len(cells[0])):
        table.add_row(
            *(Text(cell[row], style=_style(group, stage)) for cell, stage in zip(cells, _STAGES, strict=True))
        )
    return table


def _stages_below(group: StepGroup, *, waits: bool) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for stage in _STAGES:
        table.add_row(
            *(
                Text(cell, style=_style(group, stage))
                for cell in _cells(group, stage)[: None if waits else -1]
            )
        )
    return table


def _cells(group: StepGroup, stage: str) -> tuple[str, str, str, str]:
    """A stage's name with its threads, bar, milliseconds, and its waiting."""
    stage_s = group.stage_s.get(stage, 0.0)
    slowest = max(group.stage_s.values(), default=0.0)
    threads = group.threads.get(stage)
    arrow = "" if stage == _STAGES[0] else "→ "
    waits = [
        f"{milliseconds(wait_s)} {what}"
        for what, end in (("in", "input"), ("out", "output"))
        if (wait_s := group.blocked_s.get(f"{stage}.{end}", 0.0)) >= 5e-4
    ]
    return (
        f"{arrow}{stage}" + (f" x{threads}" if threads else ""),
        bar(stage_s / slowest if slowest else 0.0, _BAR),
        f"{milliseconds(stage_s)} ms" + (" ◀" if stage == group.bottleneck else ""),
        f"waits {', '.join(waits)}" if waits else "",
    )


def _style(group: StepGroup, stage: str) -> str:
    return "bold yellow" if stage == group.bottleneck else ""


def _trainers(group: StepGroup, length: int) -> Table:
    """Each trainer's targets, their part of the step as a bar, and how much of the time it propagates."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    total = sum(group.split.values()) or 1
    for name, units in group.split.items():
        busy = min(1.0, group.busy_s.get(name, 0.0) / group.step_s) if group.step_s else 0.0
        table.add_row(
            # As a Text, which rich searches for neither markup nor emoji names.
            Text(name),
            Text(f"{units:,}", justify="right"),
            Text(bar(units / total, length), style="cyan"),
            Text(f"{busy:.0%} busy"),
        )
    return table
