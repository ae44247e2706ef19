"""Charts of one run, and charts that compare several runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from hyrt_perfmodel.policy import STAGES

from hyrt.formatting import format_duration
from hyrt.report.html.chart import Chart, Series
from hyrt.report.run_record import Line, RunRecord, get_number
from hyrt.report.step_summary import device_stats

# Maximum numbers of bands and marks that are drawn.
_MAX_BANDS, _MAX_MARKS = 200, 100
# Minimum fraction of the longest waits above which a wait is drawn.
_MIN_WAIT_SHARE = 0.01

_format_number, _format_score, _format_gib = "{:g}".format, "{:.3f}".format, "{:.3g} GiB".format


def run_charts(run: RunRecord) -> list[Chart]:
    """Create the charts of a run: loss, metrics, times, split, threads, waiting, utilization and memory."""
    groups = run.select("steps")
    decisions = [(line["acts_from"], line["reason"]) for line in run.select("balanced")]
    # More marks would merge into a grey area. The table below the charts lists all decisions.
    marks = decisions if len(decisions) <= _MAX_MARKS else []
    times = [_line("measured", groups, "step_s"), *_predicted(run, groups)]
    busy = [
        replace(_utilization(groups, name), name=run.label_device(name), colour=colour)
        for colour, name in enumerate(_keys(groups, "split"))
    ]
    metrics = _evaluation_lines(run, _metrics(run), first_colour=1)
    edges = "edges of all layers" if run.is_full_graph else "sampled edges"
    charts = [
        Chart(
            key="loss",
            title="Loss",
            series=[_losses(groups), *_evaluation_lines(run, ["loss"], first_colour=1)],
        ),
        Chart(key="metrics", title="Metrics", series=metrics, value=_format_score),
        Chart(
            key="step",
            title="Time of a step, measured and predicted",
            series=times,
            value=format_duration,
            unit="s",
            marks=marks,
            clips_outliers=True,
        ),
        Chart(
            key="stages",
            title="Work of the stages per step; the bottleneck below",
            series=_lines_by_name(groups, "stage_s", STAGES),
            value=format_duration,
            unit="s",
            bands=_bottlenecks(groups),
            clips_outliers=True,
        ),
        *(
            Chart(
                key=key,
                title=title,
                series=_lines_by_name(groups, key),
                value=_format_number,
                marks=marks,
                step=True,
            )
            for title, key in (("Split: targets per step", "split"), ("CPU threads of the stages", "threads"))
            # In full-graph training, the split never changes.
            if not (run.is_full_graph and key == "split")
        ),
        Chart(
            key="waiting",
            title="Waiting time of the stages per step, if noticeable",
            series=_notable_lines(_lines_by_name(groups, "blocked_s")),
            value=format_duration,
            unit="s",
            clips_outliers=True,
        ),
        Chart(
            key="queues",
            title="Mini-batches waiting in the channels",
            series=_lines_by_name(groups, "queued"),
        ),
        Chart(
            key="busy",
            title="Devices: fraction of the time spent propagating",
            series=busy,
            value="{:.0%}".format,
            unit="%",
        ),
        Chart(
            key="throughput",
            title="Throughput in MTEPS",
            series=[_line(f"{edges} per second, in millions", groups, "mteps")],
        ),
        *_chunk_charts(run, groups),
        Chart(
            key="memory",
            title="Resident memory",
            series=[_memory("process", groups)],
            value=_format_gib,
            unit="GiB",
        ),
    ]
    return [chart for chart in charts if not chart.is_empty]


def _chunk_charts(run: RunRecord, groups: Sequence[Line]) -> list[Chart]:
    """Create a chart of copy and compute times for each device that trains in chunks."""
    lines_with_chunks = [line for line in groups if line.get("chunks")]
    return [
        Chart(
            key="chunks",
            title=f"Chunks on {run.label_device(device)}: copying, computing, and both at once, per step",
            series=[
                _line(label, lines, device, key, colour=colour)
                for colour, (label, key) in enumerate(
                    (("copying", "copy_s"), ("computing", "compute_s"), ("hidden copying", "hidden_s"))
                )
            ],
            value=format_duration,
            unit="s",
            clips_outliers=True,
        )
        for name in _keys(lines_with_chunks, "chunks")
        for device, lines in _group_by_device(lines_with_chunks, name).items()
    ]


def _group_by_device(lines: Sequence[Line], trainer: str) -> dict[str, list[Line]]:
    """Group the chunk statistics of a trainer by device."""
    by_device: dict[str, list[Line]] = {}
    for line in lines:
        for device, work in device_stats(trainer, line["chunks"].get(trainer) or {}).items():
            by_device.setdefault(device, []).append({"step": line["step"], device: work})
    return by_device


def comparison_charts(runs: Sequence[RunRecord], names: Sequence[str]) -> list[Chart]:
    """Create charts that compare the loss, step time, validation metric and others, with one line per run."""
    metric = next((str(run.summary["chosen_by"]) for run in runs if run.summary.get("chosen_by")), "accuracy")
    no_points = Series(name="", x=(), y=())

    def one_line_per_run(series: Callable[[RunRecord, list[Line]], Series]) -> list[Series]:
        return [
            replace(series(run, run.select("steps")), name=name, colour=colour)
            for colour, (run, name) in enumerate(zip(runs, names, strict=True))
        ]

    scores = one_line_per_run(
        lambda run, _: next(iter(_evaluation_lines(run, [metric], splits=["val"])), no_points)
    )
    times = one_line_per_run(lambda _, lines: _line("", lines, "step_s"))
    charts = [
        Chart(key="loss", title="Loss", series=one_line_per_run(lambda _, lines: _losses(lines))),
        Chart(key="metrics", title=f"Validation {metric}", series=scores, value=_format_score),
        Chart(
            key="step",
            title="Time of a step",
            series=times,
            value=format_duration,
            unit="s",
            clips_outliers=True,
        ),
        Chart(
            key="throughput",
            title="Throughput in MTEPS",
            series=one_line_per_run(lambda _, lines: _line("", lines, "mteps")),
        ),
        Chart(
            key="memory",
            title="Resident memory",
            series=one_line_per_run(lambda _, lines: _memory("", lines)),
            value=_format_gib,
            unit="GiB",
        ),
    ]
    return [chart for chart in charts if not chart.is_empty]


def _notable_lines(lines: Sequence[Series]) -> list[Series]:
    """Return the lines whose 90 % quantile exceeds a hundredth of the highest 90 % quantile."""
    finite = [sorted(y for y in line.y if math.isfinite(y)) or [0.0] for line in lines]
    usual = [values[int(0.9 * (len(values) - 1))] for values in finite]
    return [line for line, value in zip(lines, usual, strict=True) if value > _MIN_WAIT_SHARE * max(usual)]


def _line(name: str, lines: Sequence[Line], *keys: str, colour: int = 0) -> Series:
    x = [line["step"] for line in lines]
    return Series(name=name, x=x, y=[get_number(line, *keys) for line in lines], colour=colour)


def _lines_by_name(lines: Sequence[Line], key: str, names: Sequence[str] | None = None) -> list[Series]:
    names = _keys(lines, key) if names is None else names
    return [_line(name, lines, key, name, colour=colour) for colour, name in enumerate(names)]


def _keys(lines: Sequence[Line], key: str) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in line.get(key, {})))


def _memory(name: str, lines: Sequence[Line]) -> Series:
    memory = _line(name, lines, "memory_bytes")
    return replace(memory, y=[y / 2**30 for y in memory.y])


def _utilization(lines: Sequence[Line], trainer: str) -> Series:
    busy, steps = _line(trainer, lines, "busy_s", trainer), _line("", lines, "step_s")
    parts = [
        min(1.0, busy_s / step_s) if busy_s >= 0 and step_s > 0 else math.nan
        for busy_s, step_s in zip(busy.y, steps.y, strict=True)
    ]
    return replace(busy, y=parts)


def _losses(groups: Sequence[Line]) -> Series:
    """Create the line of the training loss with a point per step; a record has the losses of
    several steps.
    """
    firsts = [line["step"] - len(line["losses"]) + 1 for line in groups]
    x = [step for first, line in zip(firsts, groups, strict=True) for step in range(first, line["step"] + 1)]
    y = [math.nan if loss is None else float(loss) for line in groups for loss in line["losses"]]
    return Series(name="training", x=x, y=y)


def _metrics(run: RunRecord) -> list[str]:
    chosen = run.summary.get("chosen_by")
    all_names = [
        name for line in run.select("evaluated") for part in line["metrics"].values() for name in part
    ]
    names = list(dict.fromkeys(name for name in all_names if name != "loss"))
    # Put the metric that selects the best epoch first.
    return sorted(names, key=lambda name: name != chosen)


def _evaluation_lines(
    run: RunRecord, metrics: Iterable[str], *, splits: Sequence[str] = ("val", "test"), first_colour: int = 0
) -> list[Series]:
    series: list[Series] = []
    for metric in metrics:
        for split in splits:
            lines = [line for line in run.select("evaluated") if metric in line["metrics"].get(split, {})]
            if lines:
                colour = first_colour + len(series)
                series.append(_line(f"{split} {metric}", lines, "metrics", split, metric, colour=colour))
    return series


def _predicted(run: RunRecord, groups: Sequence[Line]) -> list[Series]:
    predictions = run.select("predicted")
    if not predictions or not groups:
        return []
    expected = get_number(predictions[-1], "iteration_s")
    x = [groups[0]["step"], groups[-1]["step"]]
    return [Series(name="predicted", x=x, y=[expected, expected], colour=1, dashed=True)]


def _bottlenecks(groups: Sequence[Line]) -> list[tuple[float, float, int, str]]:
    """Create bands for the bottleneck stage. In a long run, each band shows the most frequent bottleneck."""
    size = -(-len(groups) // _MAX_BANDS)
    parts = [groups[start_index : start_index + size] for start_index in range(0, len(groups), size or 1)]
    dominant = [
        (Counter(str(line["bottleneck"]) for line in part).most_common(1)[0][0], part) for part in parts
    ]
    bands = []
    start = 0.0
    for stage, part in groupby(dominant, key=lambda item: item[0]):
        stop = float(list(part)[-1][1][-1]["step"])
        colour = STAGES.index(stage) if stage in STAGES else len(STAGES)
        prefix = "mostly " if size > 1 else ""
        bands.append((start, stop, colour, f"bottleneck {prefix}{stage}, steps {start:g} to {stop:g}"))
        start = stop
    return bands
