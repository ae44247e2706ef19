"""Live dashboard of a run: its pipeline stages, channels and trainers."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from hyrt_perfmodel.assignment import STAGES

from hyrt.observe.events import StepGroup
from hyrt.quantities import brief_milliseconds
from hyrt.report.channels import CHANNELS, THREADS, fill_and_depth
from hyrt.report.chunk_words import ChunkWords, works_of
from hyrt.report.terminal.progress_line import bar, head, process_text, with_bar

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

_MIN_BAR, _MAX_BAR = 8, 16
_QUEUE_BAR = 5
# Minimum terminal width for stages in one row.
_SINGLE_ROW_WIDTH = 92
_WAITS_WIDTH = 60
_QUEUE_BARS_WIDTH = 72


def dashboard(group: StepGroup, *, epochs: int, predicted_s: float | None, width: int) -> Group:
    """Render the dashboard of the newest steps.

    Parameters
    ----------
    group
        The steps.
    epochs
        Number of epochs of the run.
    predicted_s
        Predicted time per step in seconds; None without a prediction.
    width
        Terminal width in columns. Below 92 columns there is one row per stage, below 60 without waiting
        times.
    """
    from rich.console import Group
    from rich.text import Text

    memory = process_text(group)
    position = with_bar(group, epochs, [memory], width) or "  ".join([*head(group, epochs), memory])
    first = Text(position, no_wrap=True, overflow="crop")
    first.highlight_regex(r"[━]+", "green")
    expected = "" if predicted_s is None else f" (predicted {brief_milliseconds(predicted_s)})"
    return Group(
        first,
        Text(
            f"{brief_milliseconds(group.step_s)} ms per step{expected} · step {group.step:,} of the run",
            style="dim",
            no_wrap=True,
            overflow="crop",
        ),
        _pipeline(group, width) if width >= _SINGLE_ROW_WIDTH else _stage_rows(group, width),
        _trainers(group, width),
        *_chunks(group, width),
        *_caches(group),
    )


def _chunks(group: StepGroup, width: int) -> list[Text]:
    """Render the chunk summary of each trainer that trains the full graph in chunks.

    Of several ranks, only the trainers of the slowest rank are shown.
    """
    from rich.text import Text

    lines: list[str] = []
    slowest = "" if group.slowest_rank is None else f"rank {group.slowest_rank} "
    for trainer, figures in group.chunks.items():
        if not trainer.startswith(slowest):
            continue
        summary = ChunkWords.of(trainer, figures)
        longest = max(map(len, summary.devices), default=0)
        several = len(works_of(trainer, figures)) > 1
        device_lines = [
            f"{name:{longest}}  {text}" if several else text for name, text in summary.devices.items()
        ]
        lines.append(f"{trainer}  {summary.cut}")
        lines += [f"  {text}" for text in (summary.filtered, *device_lines, summary.bound) if text]
    return [
        Text(part, style="cyan", no_wrap=True, overflow="crop")
        for line in lines
        for part in textwrap.wrap(line, max(width, 20), subsequent_indent="    ", break_on_hyphens=False)
    ]


def _caches(group: StepGroup) -> list[Text]:
    """Render the cache hit rate of each trainer that caches feature rows."""
    from rich.text import Text

    return [
        Text(f"{name}  feature cache hit rate {rate:.1%}", style="cyan", no_wrap=True, overflow="crop")
        for name, rate in group.cache_hits.items()
    ]


def _pipeline(group: StepGroup, width: int) -> Table:
    """Render the stages in one row, with the channels between them.

    A stage shows its threads, its time as a bar relative to the slowest stage and in milliseconds, and its
    waiting
    times. A channel shows its mean fill as a bar and as `items/capacity`.
    """
    from rich.table import Table
    from rich.text import Text

    length = min(_MAX_BAR, _MIN_BAR + (width - _SINGLE_ROW_WIDTH) // len(STAGES))
    table = Table.grid(padding=(0, 1))
    columns: list[list[str]] = []
    styles: list[str] = []
    for stage in STAGES:
        table.add_column(no_wrap=True, min_width=length)
        columns.append([*_cells(group, stage, length), *_waits(group, stage), "", ""][:5])
        styles.append(_style(group, stage))
        if stage != STAGES[-1]:
            table.add_column(no_wrap=True, justify="center")
            columns.append(["→", *_queue(group, stage), "", "", "", ""][:5])
            styles.append("cyan")
    for row in zip(*columns, strict=True):
        if any(row):
            table.add_row(*map(Text, row, styles))
    return table


def _stage_rows(group: StepGroup, width: int) -> Table:
    """Render one row per stage, with its output channel and waiting times."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for stage in STAGES:
        length = min(_MAX_BAR, max(_MIN_BAR, width - 66))
        cells = [Text(cell, style=_style(group, stage)) for cell in _cells(group, stage, length)]
        queue = _queue(group, stage)
        if queue and width < _QUEUE_BARS_WIDTH:
            queue = queue[1:]
        cells.append(Text(" ".join(["→", *queue]) if queue else "", style="cyan"))
        if width >= _WAITS_WIDTH:
            cells.append(Text(", ".join(_waits(group, stage)), style=_style(group, stage)))
        table.add_row(*cells)
    return table


def _cells(group: StepGroup, stage: str, length: int) -> tuple[str, str, str]:
    """Return a stage's name with its threads, its bar, and its time in milliseconds."""
    stage_s = group.stage_s.get(stage, 0.0)
    slowest = max(group.stage_s.values(), default=0.0)
    threads = group.threads.get(THREADS.get(stage, ""))
    return (
        stage + (f" x{threads}" if threads else ""),
        bar(stage_s / slowest if slowest else 0.0, length),
        f"{brief_milliseconds(stage_s)} ms" + (" ◀" if stage == group.bottleneck else ""),
    )


def _waits(group: StepGroup, stage: str) -> list[str]:
    """Return a stage's waiting times for input and for output, without negligible times."""
    waits = [
        f"{brief_milliseconds(wait_s)} {label}"
        for label, end in (("in", "input"), ("out", "output"))
        if (wait_s := group.blocked_s.get(f"{stage}.{end}", 0.0)) >= 5e-4
    ]
    return [f"waits {waits[0]}", *waits[1:]] if waits else []


def _queue(group: StepGroup, stage: str) -> list[str]:
    """Return a stage's output channel as a bar and as `1.9/3`, summed over trainers; empty if it has none."""
    fill, depth = fill_and_depth(CHANNELS.get(stage, ""), group.queued, group.queue_depth)
    if not depth:
        return []
    return [bar(round(_QUEUE_BAR * fill / depth) / _QUEUE_BAR, _QUEUE_BAR), _fill_text(fill, depth)]


def _style(group: StepGroup, stage: str) -> str:
    return "bold yellow" if stage == group.bottleneck else ""


def _fill_text(fill: float, depth: int) -> str:
    """Format a channel's fill as `1.9/3`."""
    return f"{fill:.1f}/{depth}" if fill < 9.95 else f"{fill:.0f}/{depth}"


def _trainers(group: StepGroup, width: int) -> Table:
    """Render each trainer's targets, share of the step, busy time and channels."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    total = sum(group.split.values()) or 1
    for name, units in group.split.items():
        busy = min(1.0, group.busy_s.get(name, 0.0) / group.step_s) if group.step_s else 0.0
        queues = [
            f"{channel} {_fill_text(group.queued.get(key, 0.0), group.queue_depth[key])}"
            for channel in CHANNELS.values()
            if (key := f"{channel}.{name}") in group.queue_depth
        ]
        table.add_row(
            # A Text object disables rich's markup and emoji names.
            Text(name),
            Text(f"{units:,}", justify="right"),
            Text(bar(units / total, min(20, width // 4)), style="cyan"),
            Text(f"{busy:.0%} busy"),
            # For a single trainer, the pipeline already shows its channels.
            Text(
                "  ".join(queues) if len(group.split) > 1 and width >= _SINGLE_ROW_WIDTH else "", style="cyan"
            ),
        )
    return table
