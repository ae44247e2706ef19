"""Text of the progress display: lines for a given width, the dashboard, and results of run series."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hyrt_perfmodel.policy import STAGES

from hyrt.formatting import (
    format_brief_duration,
    format_brief_milliseconds,
    format_bytes,
    format_following_duration,
    format_sig3,
)
from hyrt.report.step_summary import CHANNELS, THREADS, ChunkSummary, device_stats, fill_and_depth
from hyrt.telemetry.events import EpochEnded, EvaluationFinished, PredictionMade, StepMetrics

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text


_METRIC_NAMES = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "roc_auc": "ROC AUC",
    "mean_average_precision": "mean AP",
    "average_precision": "AP",
    "mrr": "MRR",
    "mse": "MSE",
    "mae": "MAE",
    "r2": "R2",
}
# Metrics in the unit of the labels or its square, for which no fixed number of decimals is suitable.
_UNBOUNDED_METRICS = ("mse", "mae")


def step_line(group: StepMetrics, epochs: int, width: int | None) -> str:
    """Format the latest steps as one line: position, speed and bottleneck of the run.

    Parts that do not fit into `width` columns are omitted in this order: the bar, memory, stages under 2 % of
    the longest, all stages but the bottleneck, all stages, speed. Without `width`, only the bar is omitted.
    """
    stages, memory = stages_text(group.stage_s, group.bottleneck), process_text(group)
    if width is not None and (line := format_with_bar(group, epochs, [stages, memory], width)):
        return line
    return _fit_line(position_parts(group, epochs), group.stage_s, group.bottleneck, memory, width)


def position_parts(group: StepMetrics, epochs: int) -> list[str]:
    """Return the position, the loss and the speed of the run."""
    position = [f"epoch {group.epoch}/{epochs}", f"{group.steps_done}/{group.steps_per_epoch}"]
    return [*position, f"loss {format_sig3(group.loss)}", f"{format_sig3(group.mteps)} MTEPS"]


def format_with_bar(group: StepMetrics, epochs: int, more: Sequence[str], width: int) -> str:
    """Format the position with a progress bar of the epoch; empty if the bar does not fit."""
    epoch, count, *rates = position_parts(group, epochs)
    columns = min(24, width - len("  ".join([epoch, count, *rates, *more])))
    if columns < 8:
        return ""
    share = group.steps_done / group.steps_per_epoch if group.steps_per_epoch else 1.0
    return "  ".join([f"{epoch} {bar(share, columns)} {count}", *rates, *more])


def epoch_line(
    ended: EpochEnded,
    epochs: int,
    stage_s: Mapping[str, float],
    bottleneck: str,
    memory_bytes: int,
    width: int | None,
) -> str:
    """Format an epoch's time, loss, speed and mean stage times per step as one line.

    Parts that do not fit are omitted as in `step_line`.
    """
    parts = [
        f"epoch {ended.epoch}/{epochs}",
        format_brief_duration(ended.seconds),
        f"loss {format_sig3(ended.loss)}",
        f"{format_sig3(ended.mteps)} MTEPS",
    ]
    return _fit_line(parts, stage_s, bottleneck, memory_text(memory_bytes), width)


def _fit_line(
    start: list[str], stage_s: Mapping[str, float], bottleneck: str, memory: str, width: int | None
) -> str:
    longest = max(stage_s.values(), default=0.0)
    notable = {
        name: time_s for name, time_s in stage_s.items() if time_s > 0.02 * longest or name == bottleneck
    }
    bound = {name: time_s for name, time_s in stage_s.items() if name == bottleneck}
    all_stages = stages_text(stage_s, bottleneck)
    candidates = [[*start, all_stages, memory], [*start, all_stages]]
    candidates += [[*start, stages_text(stages, bottleneck)] for stages in (notable, bound)]
    candidates += [start, start[:-1]]
    for parts in candidates:
        line = "  ".join(part for part in parts if part)
        if width is None or len(line) <= width:
            return line
    return line[:width]


def evaluation_line(evaluated: EvaluationFinished) -> str:
    """Format the metric that selects the best epoch for each split."""
    scores = scores_text(evaluated.metrics, evaluated.chosen_by)
    if not scores:
        return "nothing to evaluate: the dataset has no validation or test vertices"
    # Without validation targets, the latest evaluation always counts as the best.
    is_best = evaluated.is_best and "val" in evaluated.metrics
    return f"{scores}{'  best so far' if is_best else ''}  ({format_brief_duration(evaluated.seconds)})"


def prediction_line(predicted: PredictionMade) -> str:
    """Format a prediction: `3.4 s per epoch ± 0.4, bottleneck propagate`."""
    error_text = ""
    if predicted.relative_error is not None:
        error_s = predicted.epoch_s * predicted.relative_error
        error_text = f" ± {format_following_duration(error_s, predicted.epoch_s)}"
    return (
        f"{format_brief_duration(predicted.epoch_s)} per epoch{error_text}, bottleneck {predicted.bottleneck}"
    )


def metric_name(metric: str) -> str:
    """Return the display name of a metric such as `macro_f1`."""
    return _METRIC_NAMES.get(metric, metric)


def scores_text(metrics: Mapping[str, Mapping[str, float]], metric: str) -> str:
    """Format scores: `val accuracy 0.913 · test accuracy 0.908`."""
    name = metric_name(metric)

    def shown(value: float) -> str:
        return format_sig3(value) if metric in _UNBOUNDED_METRICS else f"{value:.3f}"

    return " · ".join(
        f"{split} {name} {shown(values[metric])}" for split, values in metrics.items() if metric in values
    )


def stages_text(stage_s: Mapping[str, float], bottleneck: str) -> str:
    """Format stage times and mark the bottleneck: `sample 6.1 ms load 9.0 propagate 41 ◀`."""
    parts: list[str] = []
    for name, time_s in stage_s.items():
        unit = "" if parts else " ms"
        parts.append(f"{name} {format_brief_milliseconds(time_s)}{unit}{' ◀' if name == bottleneck else ''}")
    return "  ".join(parts)


def memory_text(memory_bytes: int) -> str:
    """Format memory: `mem 700 MiB`; empty if unknown."""
    return f"mem {format_bytes(memory_bytes)}" if memory_bytes else ""


def process_text(group: StepMetrics) -> str:
    """Format memory as `mem 700 MiB`; if there are several ranks, add `rank 2 of 0 to 3 is slowest`."""
    memory = memory_text(group.memory_bytes)
    if group.slowest_rank is None:
        return memory
    ranks = f"rank {group.slowest_rank} of 0 to {group.num_ranks - 1} is slowest"
    return f"{memory}  {ranks}" if memory else ranks


def bar(share: float, columns: int) -> str:
    """Draw a bar that is filled from the left: ━━━━╌╌╌╌."""
    filled = int(min(max(share, 0.0), 1.0) * columns)
    return "━" * filled + "╌" * (columns - filled)


_MIN_BAR, _MAX_BAR = 8, 16
_QUEUE_BAR = 5
# Minimum terminal width for stages in one row.
_SINGLE_ROW_WIDTH = 92
_WAITS_WIDTH = 60
_QUEUE_BARS_WIDTH = 72


def dashboard(group: StepMetrics, *, epochs: int, predicted_s: float | None, width: int) -> Group:
    """Render the dashboard of the latest steps for a terminal of `width` columns.

    Below 92 columns, each stage has a row, and below 60, waiting times are omitted. `predicted_s` is the
    predicted time per step in seconds, or None.
    """
    from rich.console import Group
    from rich.text import Text

    memory = process_text(group)
    position = format_with_bar(group, epochs, [memory], width) or "  ".join(
        [*position_parts(group, epochs), memory]
    )
    first = Text(position, no_wrap=True, overflow="crop")
    first.highlight_regex(r"[━]+", "green")
    expected = "" if predicted_s is None else f" (predicted {format_brief_milliseconds(predicted_s)})"
    return Group(
        first,
        Text(
            f"{format_brief_milliseconds(group.step_s)} ms per step{expected} · step "
            f"{group.step:,} of the run",
            style="dim",
            no_wrap=True,
            overflow="crop",
        ),
        _pipeline(group, width) if width >= _SINGLE_ROW_WIDTH else _stage_rows(group, width),
        _trainers(group, width),
        *_chunks(group, width),
        *_caches(group),
    )


def _chunks(group: StepMetrics, width: int) -> list[Text]:
    """Render the chunk summary of each trainer; with several ranks, only of the slowest rank's trainers."""
    from rich.text import Text

    lines: list[str] = []
    slowest = "" if group.slowest_rank is None else f"rank {group.slowest_rank} "
    for trainer, figures in group.chunks.items():
        if not trainer.startswith(slowest):
            continue
        summary = ChunkSummary.from_stats(trainer, figures)
        longest = max(map(len, summary.devices), default=0)
        several = len(device_stats(trainer, figures)) > 1
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


def _caches(group: StepMetrics) -> list[Text]:
    """Render the cache hit rate of each trainer that caches feature rows."""
    from rich.text import Text

    return [
        Text(f"{name}  feature cache hit rate {rate:.1%}", style="cyan", no_wrap=True, overflow="crop")
        for name, rate in group.cache_hits.items()
    ]


def _pipeline(group: StepMetrics, width: int) -> Table:
    """Render the stages in one row, with the channels between them.

    A stage shows its threads, its time in milliseconds and as a bar relative to the slowest stage, and its
    waiting times. A channel shows its mean fill as a bar and as `items/capacity`.
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


def _stage_rows(group: StepMetrics, width: int) -> Table:
    """Render each stage as a row with its output channel and waiting times."""
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


def _cells(group: StepMetrics, stage: str, length: int) -> tuple[str, str, str]:
    """Return the name and threads of a stage, its bar, and its time in milliseconds."""
    stage_s = group.stage_s.get(stage, 0.0)
    slowest = max(group.stage_s.values(), default=0.0)
    threads = group.threads.get(THREADS.get(stage, ""))
    return (
        stage + (f" x{threads}" if threads else ""),
        bar(stage_s / slowest if slowest else 0.0, length),
        f"{format_brief_milliseconds(stage_s)} ms" + (" ◀" if stage == group.bottleneck else ""),
    )


def _waits(group: StepMetrics, stage: str) -> list[str]:
    """Return the waiting times of a stage for input and output, unless they are negligible."""
    waits = [
        f"{format_brief_milliseconds(wait_s)} {label}"
        for label, end in (("in", "input"), ("out", "output"))
        if (wait_s := group.blocked_s.get(f"{stage}.{end}", 0.0)) >= 5e-4
    ]
    return [f"waits {waits[0]}", *waits[1:]] if waits else []


def _queue(group: StepMetrics, stage: str) -> list[str]:
    """Return a stage's output channel as a bar and as `1.9/3`, summed over trainers; empty without one."""
    fill, depth = fill_and_depth(CHANNELS.get(stage, ""), group.queued, group.queue_depth)
    if not depth:
        return []
    return [bar(round(_QUEUE_BAR * fill / depth) / _QUEUE_BAR, _QUEUE_BAR), _fill_text(fill, depth)]


def _style(group: StepMetrics, stage: str) -> str:
    return "bold yellow" if stage == group.bottleneck else ""


def _fill_text(fill: float, depth: int) -> str:
    """Format the fill of a channel as `1.9/3`."""
    return f"{fill:.1f}/{depth}" if fill < 9.95 else f"{fill:.0f}/{depth}"


def _trainers(group: StepMetrics, width: int) -> Table:
    """Render the targets, share of the step, busy time and channels of each trainer."""
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
            # The pipeline already shows the channels of a single trainer.
            Text(
                "  ".join(queues) if len(group.split) > 1 and width >= _SINGLE_ROW_WIDTH else "", style="cyan"
            ),
        )
    return table


def series_lines(summary: Mapping[str, Any], total: int) -> list[str]:
    """Return the final output of `hyrt run --seeds`, given `RunSeries.summarize` and the number of runs."""
    done = len(summary["runs"])
    seeds, splits = _numbers("seed", summary["seeds"]), _numbers("split", summary["splits"])
    lines = [f"{done} of {total} runs · {seeds} · {splits}"]
    if not done:
        return lines
    lines.append(f"{'':16} {'mean':>8}   {'deviation':>9} {'lowest':>8} {'highest':>8}")
    for split, metrics in summary["metrics"].items():
        for name, statistics in metrics.items():
            deviation = "-" if statistics["deviation"] is None else f"{statistics['deviation']:.4f}"
            lines.append(
                f"{f'{split} {metric_name(name)}':16} {statistics['mean']:8.4f} ± {deviation:>9} "
                f"{statistics['lowest']:8.4f} {statistics['highest']:8.4f}"
            )
    return lines


def _numbers(noun: str, numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and list(numbers) == list(range(first, last + 1)):
        return f"{noun}s {first} to {last}"
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
