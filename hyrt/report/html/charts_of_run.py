"""The charts of one run, and those that compare several."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from hyrt_perfmodel.assignment import STAGES

from hyrt.quantities import duration
from hyrt.report.chunk_words import works_of
from hyrt.report.html.chart import Chart, Series
from hyrt.report.records.run_record import Line, RunRecord, number_of

# Of bands that are drawn, and of marks.
_MOST_BANDS, _MOST_MARKS = 200, 100
# Waits below this part of the longest are not worth a line.
_LEAST = 0.01

_whole, _score, _gibibytes = "{:g}".format, "{:.3f}".format, "{:.3g} GiB".format


def charts_of(run: RunRecord) -> list[Chart]:
    """Loss, metrics, times, split, threads, waiting, utilisation and memory over the steps, where known."""
    groups = run.of("steps")
    decisions = [(line["acts_from"], line["reason"]) for line in run.of("balanced")]
    # More marks than this are a grey wall: the table below the charts has them.
    marks = decisions if len(decisions) <= _MOST_MARKS else []
    times = [_line("measured", groups, "step_s"), *_predicted(run, groups)]
    busy = [
        replace(_busy(groups, name), name=run.labelled(name), colour=colour)
        for colour, name in enumerate(_keys(groups, "split"))
    ]
    metrics = _evaluated(run, _metrics(run), first_colour=1)
    edges = "edges of all layers" if run.is_of_whole_graphs else "sampled edges"
    charts = [
        Chart(key="loss", title="Loss", series=[_losses(groups), *_evaluated(run, ["loss"], first_colour=1)]),
        Chart(key="metrics", title="Metrics", series=metrics, value=_score),
        Chart(
            key="step",
            title="Time of a step, measured and predicted",
            series=times,
            value=duration,
            unit="s",
            marks=marks,
            cut=True,
        ),
        Chart(
            key="stages",
            title="Work of the stages per step; the bottleneck below",
            series=_each(groups, "stage_s", STAGES),
            value=duration,
            unit="s",
            bands=_bottlenecks(groups),
            cut=True,
        ),
        *(
            Chart(key=key, title=title, series=_each(groups, key), value=_whole, marks=marks, step=True)
            for title, key in (("Split: targets per step", "split"), ("CPU threads of the stages", "threads"))
            # Of a whole graph each step has all targets, and nothing moves.
            if not (run.is_of_whole_graphs and key == "split")
        ),
        Chart(
            key="waiting",
            title="Waiting of the stages per step, if it is noticeable",
            series=_that_count(_each(groups, "blocked_s")),
            value=duration,
            unit="s",
            cut=True,
        ),
        Chart(key="queues", title="Mini-batches waiting in the channels", series=_each(groups, "queued")),
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
            value=_gibibytes,
            unit="GiB",
        ),
    ]
    return [chart for chart in charts if not chart.is_empty]


def _chunk_charts(run: RunRecord, groups: Sequence[Line]) -> list[Chart]:
    """What each device that holds chunks of a whole graph copies and computes, and what is hidden."""
    told = [line for line in groups if line.get("chunks")]
    return [
        Chart(
            key="chunks",
            title=f"Chunks on {run.labelled(device)}: copying, computing, and both at once, per step",
            series=[
                _line(what, lines, device, key, colour=colour)
                for colour, (what, key) in enumerate(
                    (("copying", "copy_s"), ("computing", "compute_s"), ("hidden copying", "hidden_s"))
                )
            ],
            value=duration,
            unit="s",
            cut=True,
        )
        for name in _keys(told, "chunks")
        for device, lines in _by_device(told, name).items()
    ]


def _by_device(told: Sequence[Line], trainer: str) -> dict[str, list[Line]]:
    """By the name of a device, its figures at each of the steps that tell of a trainer."""
    found: dict[str, list[Line]] = {}
    for line in told:
        for device, work in works_of(trainer, line["chunks"].get(trainer) or {}).items():
            found.setdefault(device, []).append({"step": line["step"], device: work})
    return found


def charts_beside(runs: Sequence[RunRecord], names: Sequence[str]) -> list[Chart]:
    """Loss, time of a step and validation metric of several runs in one chart each."""
    metric = next((str(run.summary["chosen_by"]) for run in runs if run.summary.get("chosen_by")), "accuracy")
    nothing = Series(name="", x=(), y=())

    def each(series: Callable[[RunRecord, list[Line]], Series]) -> list[Series]:
        return [
            replace(series(run, run.of("steps")), name=name, colour=colour)
            for colour, (run, name) in enumerate(zip(runs, names, strict=True))
        ]

    scores = each(lambda run, _: next(iter(_evaluated(run, [metric], splits=["val"])), nothing))
    times = each(lambda _, lines: _line("", lines, "step_s"))
    charts = [
        Chart(key="loss", title="Loss", series=each(lambda _, lines: _losses(lines))),
        Chart(key="metrics", title=f"Validation {metric}", series=scores, value=_score),
        Chart(key="step", title="Time of a step", series=times, value=duration, unit="s", cut=True),
        Chart(
            key="throughput",
            title="Throughput in MTEPS",
            series=each(lambda _, lines: _line("", lines, "mteps")),
        ),
        Chart(
            key="memory",
            title="Resident memory",
            series=each(lambda _, lines: _memory("", lines)),
            value=_gibibytes,
            unit="GiB",
        ),
    ]
    return [chart for chart in charts if not chart.is_empty]


def _that_count(lines: Sequence[Series]) -> list[Series]:
    """Those that come above a hundredth of the highest, by what nine in ten of their values are below."""
    finite = [sorted(y for y in line.y if math.isfinite(y)) or [0.0] for line in lines]
    usual = [values[int(0.9 * (len(values) - 1))] for values in finite]
    return [line for line, value in zip(lines, usual, strict=True) if value > _LEAST * max(usual)]


def _line(name: str, lines: Sequence[Line], *keys: str, colour: int = 0) -> Series:
    x = [line["step"] for line in lines]
    return Series(name=name, x=x, y=[number_of(line, *keys) for line in lines], colour=colour)


def _each(lines: Sequence[Line], key: str, names: Sequence[str] | None = None) -> list[Series]:
    names = _keys(lines, key) if names is None else names
    return [_line(name, lines, key, name, colour=colour) for colour, name in enumerate(names)]


def _keys(lines: Sequence[Line], key: str) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in line.get(key, {})))


def _memory(name: str, lines: Sequence[Line]) -> Series:
    held = _line(name, lines, "memory_bytes")
    return replace(held, y=[y / 2**30 for y in held.y])


def _busy(lines: Sequence[Line], trainer: str) -> Series:
    busy, steps = _line(trainer, lines, "busy_s", trainer), _line("", lines, "step_s")
    parts = [
        min(1.0, busy_s / step_s) if busy_s >= 0 and step_s > 0 else math.nan
        for busy_s, step_s in zip(busy.y, steps.y, strict=True)
    ]
    return replace(busy, y=parts)


def _losses(groups: Sequence[Line]) -> Series:
    """One point a step, of lines that each tell of some."""
    firsts = [line["step"] - len(line["losses"]) + 1 for line in groups]
    x = [step for first, line in zip(firsts, groups, strict=True) for step in range(first, line["step"] + 1)]
    y = [math.nan if loss is None else float(loss) for line in groups for loss in line["losses"]]
    return Series(name="training", x=x, y=y)


def _metrics(run: RunRecord) -> list[str]:
    chosen = run.summary.get("chosen_by")
    found = [name for line in run.of("evaluated") for part in line["metrics"].values() for name in part]
    names = list(dict.fromkeys(name for name in found if name != "loss"))
    # The one that chooses the best epoch comes first.
    return sorted(names, key=lambda name: name != chosen)


def _evaluated(
    run: RunRecord, metrics: Iterable[str], *, splits: Sequence[str] = ("val", "test"), first_colour: int = 0
) -> list[Series]:
    found: list[Series] = []
    for metric in metrics:
        for split in splits:
            mine = [line for line in run.of("evaluated") if metric in line["metrics"].get(split, {})]
            if mine:
                colour = first_colour + len(found)
                found.append(_line(f"{split} {metric}", mine, "metrics", split, metric, colour=colour))
    return found


def _predicted(run: RunRecord, groups: Sequence[Line]) -> list[Series]:
    said = run.of("predicted")
    if not said or not groups:
        return []
    expected = number_of(said[-1], "iteration_s")
    x = [groups[0]["step"], groups[-1]["step"]]
    return [Series(name="predicted", x=x, y=[expected, expected], colour=1, dashed=True)]


def _bottlenecks(groups: Sequence[Line]) -> list[tuple[float, float, int, str]]:
    """Bands of the stage that is the bottleneck; of long runs of the one that mostly is."""
    size = -(-len(groups) // _MOST_BANDS)
    parts = [groups[at : at + size] for at in range(0, len(groups), size or 1)]
    mostly = [
        (Counter(str(line["bottleneck"]) for line in part).most_common(1)[0][0], part) for part in parts
    ]
    bands = []
    start = 0.0
    for stage, part in groupby(mostly, key=lambda each: each[0]):
        stop = float(list(part)[-1][1][-1]["step"])
        colour = STAGES.index(stage) if stage in STAGES else len(STAGES)
        often = "mostly " if size > 1 else ""
        bands.append((start, stop, colour, f"bottleneck {often}{stage}, steps {start:g} to {stop:g}"))
        start = stop
    return bands
