"""The live picture of a run: its stages, what waits between them, and what every trainer does."""

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

_SHORTEST_BAR, _LONGEST_BAR = 8, 16
_QUEUE_BAR = 5
# Terminals from this wide on have room for the stages beside each other.
_BESIDE_FROM = 92
_WAITS_FROM = 60
_QUEUE_BARS_FROM = 72


def dashboard(group: StepGroup, *, epochs: int, predicted_s: float | None, width: int) -> Group:
    """A few lines for the newest steps.

    Parameters
    ----------
    group
        The steps.
    epochs
        The number of epochs of the run.
    predicted_s
        The predicted time of a step, in seconds; None where there is no prediction.
    width
        Columns of the terminal; below 92 the stages stand below each other, below 60 without what
        they wait for.
    """
    from rich.console import Group
    from rich.text import Text

    memory = process_text(group)
    place = with_bar(group, epochs, [memory], width) or "  ".join([*head(group, epochs), memory])
    first = Text(place, no_wrap=True, overflow="crop")
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
        _pipeline(group, width) if width >= _BESIDE_FROM else _stages_below(group, width),
        _trainers(group, width),
        *_chunks(group, width),
        *_caches(group),
    )


def _chunks(group: StepGroup, width: int) -> list[Text]:
    """Of each trainer that holds a whole graph in chunks how it is cut, what each of its devices does, how
    much of the copying is hidden, and what bounds the step. Of several ranks, of those of the slowest one.
    """
    from rich.text import Text

    lines: list[str] = []
    slowest = "" if group.slowest_rank is None else f"rank {group.slowest_rank} "
    for trainer, figures in group.chunks.items():
        if not trainer.startswith(slowest):
            continue
        words = ChunkWords.of(trainer, figures)
        longest = max(map(len, words.devices), default=0)
        several = len(works_of(trainer, figures)) > 1
        of_devices = [
            f"{name:{longest}}  {text}" if several else text for name, text in words.devices.items()
        ]
        lines.append(f"{trainer}  {words.cut}")
        lines += [f"  {text}" for text in (words.filtered, *of_devices, words.bound) if text]
    return [
        Text(part, style="cyan", no_wrap=True, overflow="crop")
        for line in lines
        for part in textwrap.wrap(line, max(width, 20), subsequent_indent="    ", break_on_hyphens=False)
    ]


def _caches(group: StepGroup) -> list[Text]:
    """Of each trainer that keeps rows, how many of those that it needed it had."""
    from rich.text import Text

    return [
        Text(f"{name}  had {rate:.1%} of its rows", style="cyan", no_wrap=True, overflow="crop")
        for name, rate in group.cache_hits.items()
    ]


def _pipeline(group: StepGroup, width: int) -> Table:
    """The stages beside each other, and between them what their channels hold.

    Of a stage: threads, work as a bar against the slowest, milliseconds, and what it waits for. Of a channel:
    its mean fill as a bar, and as items of how many fit.
    """
    from rich.table import Table
    from rich.text import Text

    length = min(_LONGEST_BAR, _SHORTEST_BAR + (width - _BESIDE_FROM) // len(STAGES))
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


def _stages_below(group: StepGroup, width: int) -> Table:
    """The stages below each other, each with the channel that it fills and what it waits for."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 1))
    for stage in STAGES:
        length = min(_LONGEST_BAR, max(_SHORTEST_BAR, width - 66))
        cells = [Text(cell, style=_style(group, stage)) for cell in _cells(group, stage, length)]
        queue = _queue(group, stage)
        if queue and width < _QUEUE_BARS_FROM:
            queue = queue[1:]
        cells.append(Text(" ".join(["→", *queue]) if queue else "", style="cyan"))
        if width >= _WAITS_FROM:
            cells.append(Text(", ".join(_waits(group, stage)), style=_style(group, stage)))
        table.add_row(*cells)
    return table


def _cells(group: StepGroup, stage: str, length: int) -> tuple[str, str, str]:
    """A stage's name with its threads, its bar, and its milliseconds."""
    stage_s = group.stage_s.get(stage, 0.0)
    slowest = max(group.stage_s.values(), default=0.0)
    threads = group.threads.get(THREADS.get(stage, ""))
    return (
        stage + (f" x{threads}" if threads else ""),
        bar(stage_s / slowest if slowest else 0.0, length),
        f"{brief_milliseconds(stage_s)} ms" + (" ◀" if stage == group.bottleneck else ""),
    )


def _waits(group: StepGroup, stage: str) -> list[str]:
    """What a stage waits for: its input, and room for its output; only what is worth a word."""
    found = [
        f"{brief_milliseconds(wait_s)} {what}"
        for what, end in (("in", "input"), ("out", "output"))
        if (wait_s := group.blocked_s.get(f"{stage}.{end}", 0.0)) >= 5e-4
    ]
    return [f"waits {found[0]}", *found[1:]] if found else []


def _queue(group: StepGroup, stage: str) -> list[str]:
    """The channel behind a stage as a bar and as `1.9/3`, summed over trainers; empty without one."""
    fill, depth = fill_and_depth(CHANNELS.get(stage, ""), group.queued, group.queue_depth)
    if not depth:
        return []
    return [bar(round(_QUEUE_BAR * fill / depth) / _QUEUE_BAR, _QUEUE_BAR), _of_depth(fill, depth)]


def _style(group: StepGroup, stage: str) -> str:
    return "bold yellow" if stage == group.bottleneck else ""


def _of_depth(fill: float, depth: int) -> str:
    """`1.9/3`."""
    return f"{fill:.1f}/{depth}" if fill < 9.95 else f"{fill:.0f}/{depth}"


def _trainers(group: StepGroup, width: int) -> Table:
    """Each trainer's targets and their part of the step, how much of the time it propagates, its queues."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    total = sum(group.split.values()) or 1
    for name, units in group.split.items():
        busy = min(1.0, group.busy_s.get(name, 0.0) / group.step_s) if group.step_s else 0.0
        queues = [
            f"{channel} {_of_depth(group.queued.get(key, 0.0), group.queue_depth[key])}"
            for channel in CHANNELS.values()
            if (key := f"{channel}.{name}") in group.queue_depth
        ]
        table.add_row(
            # As a Text, which rich searches for neither markup nor emoji names.
            Text(name),
            Text(f"{units:,}", justify="right"),
            Text(bar(units / total, min(20, width // 4)), style="cyan"),
            Text(f"{busy:.0%} busy"),
            # Of one trainer the picture above says it.
            Text("  ".join(queues) if len(group.split) > 1 and width >= _BESIDE_FROM else "", style="cyan"),
        )
    return table
