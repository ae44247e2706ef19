"""The charts of one run, and those that compare several."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from hyrt_perfmodel.assignment import STAGES

from hyrt.report.html.chart import Chart, Series
from hyrt.report.html.simulated import labelled
from hyrt.report.html.units import percent, seconds
from hyrt.report.records.run_record import Line, RunRecord


def charts_of(run: RunRecord) -> list[Chart]:
    """Loss, metrics, times, split, threads, waiting, utilisation and memory over the steps, where known."""
    groups = run.of("steps")
    steps = [line["step"] for line in groups]
    decisions = [(line["acts_from"], line["reason"]) for line in run.of("balanced")]
    # More marks than this are a grey wall: the table below the charts has them.
    decisions = decisions if len(decisions) <= _MOST_MARKS else []
    trainers = _keys(groups, "split")
    charts = [
        Chart(title="Loss", series=[_losses(groups), *_evaluated(run, ["loss"], first_colour=1)]),
        Chart(
            title="Metrics",
            series=_evaluated(run, _metrics(run), first_colour=1),
            value=lambda y: f"{y:.3f}",
        ),
        Chart(
            title="Time of a step, measured and predicted",
            cut=True,
            series=[_line("measured", groups, lambda line: line["step_s"]), *_predicted(run, steps)],
            value=seconds,
            marks=decisions,
        ),
        Chart(
            title="Work of the stages per step; the bottleneck below",
            cut=True,
            series=_each(groups, "stage_s", STAGES),
            value=seconds,
            bands=_bottlenecks(groups),
        ),
        Chart(
            title="Split: targets per step",
            series=_each(groups, "split", trainers),
            value=lambda y: f"{y:g}",
            marks=decisions,
            step=True,
        ),
        Chart(
            title="CPU threads of the stages",
            series=_each(groups, "threads", _keys(groups, "threads")),
            value=lambda y: f"{y:g}",
            marks=decisions,
            step=True,
        ),
        Chart(
            title="Waiting of the stages per step, if it is noticeable",
            cut=True,
            series=_that_count(_each(groups, "blocked_s", _keys(groups, "blocked_s"))),
            value=seconds,
        ),
        Chart(
            title="Mini-batches waiting in the channels",
            series=_each(groups, "queued", _keys(groups, "queued")),
        ),
        Chart(
            title="Devices: fraction of the time spent propagating",
            series=[
                _line(labelled(run, name), groups, lambda line, name=name: _part(line, name), colour)  # type: ignore[misc]
                for colour, name in enumerate(trainers)
            ],
            value=percent,
        ),
        Chart(
            title="Throughput in MTEPS",
            series=[_line("sampled edges per second, in millions", groups, lambda line: line["mteps"])],
        ),
        Chart(
            title="Resident memory",
            series=[_line("process", groups, _gibibytes)],
            value=lambda y: f"{y:.3g} GiB",
        ),
    ]
    return [chart for chart in charts if not chart.is_empty]


def charts_beside(runs: Sequence[RunRecord], names: Sequence[str]) -> list[Chart]:
    """Loss, time of a step and validation metric of several runs in one chart each."""
    metric = next((str(run.summary["chosen_by"]) for run in runs if run.summary.get("chosen_by")), "accuracy")

    def each(series: Callable[[RunRecord], Series]) -> list[Series]:
        found = []
        for colour, (run, name) in enumerate(zip(runs, names, strict=True)):
            line = series(run)
            found.append(Series(name=name, x=line.x, y=line.y, colour=colour))
        return found

    charts = [
        Chart(title="Loss", series=each(lambda run: _losses(run.of("steps")))),
        Chart(
            title=f"Validation {metric}",
            series=each(lambda run: next(iter(_evaluated(run, [metric], splits=["val"])), _NOTHING)),
            value=lambda y: f"{y:.3f}",
        ),
        Chart(
            title="Time of a step",
            cut=True,
            series=each(lambda run: _line("", run.of("steps"), lambda line: line["step_s"])),
            value=seconds,
        ),
        Chart(
            title="Throughput in MTEPS",
            series=each(lambda run: _line("", run.of("steps"), lambda line: line["mteps"])),
        ),
        Chart(
            title="Resident memory",
            series=each(lambda run: _line("", run.of("steps"), _gibibytes)),
            value=lambda y: f"{y:.3g} GiB",
        ),
    ]
    return [chart for chart in charts if not chart.is_empty]


_NOTHING = Series(name="", x=(), y=())


# Of bands that are drawn, and of marks.
_MOST_BANDS, _MOST_MARKS = 200, 100
# Waits below this part of the longest are not worth a line.
_LEAST = 0.01


def _gibibytes(line: Line) -> float:
    return _number(line["memory_bytes"]) / 2**30


def _that_count(lines: Sequence[Series]) -> list[Series]:
    """Those that come above a hundredth of the highest, by what they are at most times."""
    usual = [_usual(line) for line in lines]
    return [line for line, value in zip(lines, usual, strict=True) if value > _LEAST * max(usual)]


def _usual(line: Series) -> float:
    """What nine in ten values are below."""
    values = sorted(y for y in line.y if math.isfinite(y))
    return float(values[int(0.9 * (len(values) - 1))]) if values else 0.0


def _number(value: object) -> float:
    """Metrics have null for what was no number."""
    return float(value) if isinstance(value, int | float) else math.nan


def _line(name: str, lines: Sequence[Line], y: Callable[[Line], object], colour: int = 0) -> Series:
    return Series(
        name=name,
        x=[line["step"] for line in lines],
        y=[_number(y(line)) for line in lines],
        colour=colour,
    )


def _each(lines: Sequence[Line], key: str, names: Sequence[str]) -> list[Series]:
    return [
        _line(name, lines, lambda line, name=name: line.get(key, {}).get(name), colour)  # type: ignore[misc]
        for colour, name in enumerate(names)
    ]


def _keys(lines: Sequence[Line], key: str) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in line.get(key, {})))


def _losses(groups: Sequence[Line]) -> Series:
    x: list[int] = []
    y: list[float] = []
    for line in groups:
        first = line["step"] - len(line["losses"]) + 1
        x += range(first, line["step"] + 1)
        y += [_number(loss) for loss in line["losses"]]
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
    lines = run.of("evaluated")
    found: list[Series] = []
    for metric in metrics:
        for split in splits:
            mine = [line for line in lines if metric in line["metrics"].get(split, {})]
            if mine:
                found.append(
                    _line(
                        f"{split} {metric}",
                        mine,
                        lambda line, split=split, metric=metric: line["metrics"][split][metric],  # type: ignore[misc]
                        first_colour + len(found),
                    )
                )
    return found


def _predicted(run: RunRecord, steps: Sequence[int]) -> list[Series]:
    said = run.of("predicted")
    if not said or not steps:
        return []
    expected = _number(said[-1]["iteration_s"])
    return [
        Series(name="predicted", x=[steps[0], steps[-1]], y=[expected, expected], colour=1, dashed=True),
    ]


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


def _part(line: Line, trainer: str) -> float:
    busy, step_s = line.get("busy_s", {}).get(trainer), _number(line["step_s"])
    return min(1.0, _number(busy) / step_s) if busy is not None and step_s > 0 else math.nan
