"""Self-contained page report.html of a run with its overview tables, and comparisons of several runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hyrt_perfmodel.policy import STAGES

from hyrt.formatting import format_bytes, format_duration, pluralize, short_repr
from hyrt.report.html.chart import pairs, render
from hyrt.report.html.run_charts import comparison_charts, run_charts
from hyrt.report.printed_lines import quote_path
from hyrt.report.run_record import Line, RunRecord, median, weighted_median
from hyrt.report.step_summary import CHANNELS, THREADS, ChunkSummary, fill_and_depth

# Waits for a smaller fraction of a step are normal at each hand-over and are not displayed.
_MIN_WAIT_FRACTION = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """Row of a stage with its median times over the steps, as text."""

    name: str
    threads: str
    """Number of threads; empty if the stage has no threads of its own."""
    share: float
    """Working time relative to the slowest stage, 0 to 1."""
    work: str
    """Working time per step."""
    bounds: str
    """Fraction of the steps in which the stage was the slowest; empty for `synchronize`."""
    waits: str
    """Waiting times for input and for space in the output channel."""
    queue_share: float
    queue: str
    """Fill of the output channel as items and capacity, or empty; `queue_share` is the fill as a fraction."""
    is_bottleneck: bool
    """Whether the stage is the bottleneck of most steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRow:
    """Row of a trainer."""

    name: str
    """Name of the trainer, with a label if the device is simulated."""
    units: str
    """Number of units in the latest step."""
    share: float
    """Fraction of the step's units, 0 to 1."""
    busy: str
    """Propagation time per step."""
    busy_share: float
    """Fraction of the step that the trainer spends on propagation, 0 to 1."""
    queues: str
    """Fill of the channels of the trainer."""


def stage_rows(run: RunRecord) -> list[StageRow]:
    """Return one row per stage, in order; empty without steps."""
    lines = run.select("steps")
    if not lines:
        return []
    work = {stage: median(lines, "stage_s", stage) for stage in STAGES}
    slowest = max(work.values()) or 1.0
    min_wait_s = _MIN_WAIT_FRACTION * median(lines, "step_s")
    bounds, bottleneck = _bottleneck_fractions(lines)
    rows = []
    for stage in STAGES:
        waits = {
            "for input": median(lines, "blocked_s", f"{stage}.input"),
            "for room": median(lines, "blocked_s", f"{stage}.output"),
        }
        fill, depth = _channel_fill(lines, CHANNELS.get(stage, ""))
        rows.append(
            StageRow(
                name=stage,
                threads=str(lines[-1]["threads"].get(THREADS.get(stage), "")),
                share=work[stage] / slowest,
                work=format_duration(work[stage]),
                bounds="" if stage == STAGES[-1] else f"{bounds[stage]:.0%}",
                waits=", ".join(
                    f"{format_duration(s)} {reason}" for reason, s in waits.items() if s > min_wait_s
                ),
                queue_share=fill / depth if depth else 0.0,
                queue=_fill_text(fill, depth),
                is_bottleneck=stage == bottleneck,
            )
        )
    return rows


def trainer_rows(run: RunRecord) -> list[TrainerRow]:
    """Return one row per trainer, in order of the devices; empty without steps."""
    lines = run.select("steps")
    if not lines:
        return []
    step_s = median(lines, "step_s")
    split: Mapping[str, int] = lines[-1]["split"]
    total = sum(split.values()) or 1
    rows = []
    for name, units in split.items():
        busy_s = median(lines, "busy_s", name)
        queues = {
            channel: _fill_text(*_channel_fill(lines, f"{channel}.{name}")) for channel in CHANNELS.values()
        }
        rows.append(
            TrainerRow(
                name=run.label_device(name),
                units=f"{units:,}",
                share=units / total,
                busy=format_duration(busy_s),
                busy_share=min(1.0, busy_s / step_s) if step_s else 0.0,
                queues=", ".join(f"{channel} {text}" for channel, text in queues.items() if text),
            )
        )
    return rows


def bottleneck_text(run: RunRecord) -> str:
    """Describe the bottleneck of the steps in a few sentences; empty without steps."""
    lines = run.select("steps")
    if not lines:
        return ""
    work = {stage: median(lines, "stage_s", stage) for stage in STAGES}
    step_s = median(lines, "step_s")
    bounds, slowest = _bottleneck_fractions(lines)
    second = max((stage for stage in STAGES[:-1] if stage != slowest), key=lambda stage: work[stage])
    sentences = [
        (
            f"{slowest.capitalize()} is the slowest stage in {bounds[slowest]:.0%} of the "
            f"steps, with {format_duration(work[slowest])} of work per step, followed by "
            f"{second} with {format_duration(work[second])}."
        )
    ]
    busy = [f"{row.name} {row.busy}" for row in trainer_rows(run) if row.busy_share]
    if slowest == "propagate" and len(busy) > 1:
        sentences.append(f"Times of the trainers in this stage: {', '.join(busy)}.")
    if not run.settings.get("runtime", {}).get("pipelined", True):
        sentences.append(
            "The stages ran one after the other (runtime.pipelined=false), so a step takes their sum, "
            f"{format_duration(step_s)}."
        )
    elif step_s > 0:
        sentences.append(
            f"A step takes {format_duration(step_s)}; the slowest stage works for "
            f"{min(1.0, work[slowest] / step_s):.0%} of that."
        )
    return " ".join(sentences)


def _bottleneck_fractions(lines: Sequence[Line]) -> tuple[dict[str, float], str]:
    """Return the fraction of steps in which each stage was the bottleneck, and the most frequent one."""
    steps = dict.fromkeys(STAGES, 0)
    for line in lines:
        steps[str(line["bottleneck"])] += len(line["losses"])
    total = sum(steps.values()) or 1
    return {stage: count / total for stage, count in steps.items()}, max(steps, key=lambda s: steps[s])


def _channel_fill(lines: Sequence[Line], channel: str) -> tuple[float, int]:
    """Return the median number of items in a channel, and its capacity."""
    depths = lines[-1].get("queue_depth", {})
    known = [line for line in lines if line.get("queued")]
    fills = [fill_and_depth(channel, line["queued"], depths)[0] for line in known]
    return weighted_median(known, fills), fill_and_depth(channel, {}, depths)[1]


def _fill_text(fill: float, depth: int) -> str:
    return f"{fill:.1f} of {depth}" if depth else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionRow:
    """Row of the test vertices of one class."""

    number: int
    cells: Sequence[tuple[str, int]]
    """Cells for the predicted classes: number of vertices as text, and percentage of the true class."""
    right: str
    """Fraction of correct predictions as text; empty if the class has no vertices."""

    __repr__ = short_repr


def confusion_rows(run: RunRecord) -> list[ConfusionRow]:
    """Return a row per class for the best evaluation; empty without a confusion matrix."""
    best = [
        line["confusion"] for line in run.select("evaluated") if line["is_best"] and line.get("confusion")
    ]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """Row with the statistics of a rank."""

    name: str
    """Name of the rank, such as `rank 0`."""
    location: str
    """Host and devices of the rank."""
    stages: Sequence[str]
    """Time per step of each stage in `STAGES`."""
    longest: int
    """Index of the slowest stage except `synchronize`."""
    memory: str
    """Peak resident memory."""
    sent: str
    received: str
    """Bytes that the rank has received in the whole run; `sent` are the bytes that it has sent."""


def rank_rows(run: RunRecord) -> list[RankRow]:
    """Return a row per rank; empty if there is one process, or before the end of the run."""
    rows = []
    for rank, record in enumerate(_rank_records(run)):
        if record is None:
            rows.append(_missing_row(rank))
            continue
        stages: Mapping[str, float] = record["stage_s"]
        work = [stages.get(stage, 0.0) for stage in STAGES]
        rows.append(
            RankRow(
                name=f"rank {rank}",
                location=f"{record['host']}: {', '.join(map(run.label_device, record['devices']))}",
                stages=[format_duration(seconds) if stages else "" for seconds in work],
                longest=work.index(max(work[:-1])) if stages else -1,
                memory=format_bytes(record["memory_bytes"]) if record["memory_bytes"] is not None else "",
                sent=format_bytes(sum(record["bytes_sent"].values())),
                received=format_bytes(sum(record["bytes_received"].values())),
            )
        )
    return rows


def _missing_row(rank: int) -> RankRow:
    """Create the row of a rank without statistics, because the run has failed."""
    return RankRow(
        name=f"rank {rank}",
        location="lost, or no statistics received",
        stages=[""] * len(STAGES),
        longest=-1,
        memory="",
        sent="",
        received="",
    )


def purpose_rows(run: RunRecord) -> list[tuple[str, list[str], str]]:
    """Return the sent bytes by purpose, as (name, bytes of each rank, total)."""
    sent = [{} if record is None else record["bytes_sent"] for record in _rank_records(run)]
    purposes = dict.fromkeys(purpose for counts in sent for purpose in counts)
    rows = [(purpose, [counts.get(purpose, 0) for counts in sent]) for purpose in purposes]
    rows.sort(key=lambda row: -sum(row[1]))
    return [
        (name, list(map(format_bytes, counts)), format_bytes(sum(counts)))
        for name, counts in rows
        if sum(counts)
    ]


def ranks_text(run: RunRecord) -> str:
    """Describe the ranks: number, strategy and bottleneck."""
    figures = run.summary.get("distributed") or {}
    if not figures:
        return ""
    text = (
        f"{pluralize(figures['ranks'], 'rank')} trained together "
        f"(distributed.strategy={figures['strategy']})."
    )
    bottleneck = figures.get("bounded_by")
    return f"{text} Their steps are bounded by {bottleneck}." if bottleneck else text


def _rank_records(run: RunRecord) -> Sequence[Mapping[str, Any] | None]:
    # There are no ranks in a run of one process, and some entries are missing after a failure.
    records: Sequence[Mapping[str, Any] | None] = (run.summary.get("distributed") or {}).get("by_rank") or []
    return records


REPORT = "report.html"
# Numbers of first and last decisions and notices that the page of a long run lists.
_MAX_FIRST_LINES, _MAX_LAST_LINES = 50, 150


def run_page(run: RunRecord, folder: Path | None = None) -> str:
    """Render the page of a run. Links are relative to `folder`, by default the run folder."""
    stages = stage_rows(run)
    decisions, num_omitted_decisions = _abbreviate(run.select("balanced"))
    notices, notices_left_out = _abbreviate(run.select("notice"))
    return render(
        "run.html",
        run=run,
        title=run.name,
        error=run.summary.get("error"),
        key_figures=key_figures(run),
        stages=stages,
        channels=any(row.waits or row.queue for row in stages),
        trainers=trainer_rows(run),
        bottleneck=" ".join(filter(None, (bottleneck_text(run), _chunk_bottleneck_text(run)))),
        ranks=rank_rows(run),
        ranks_text=ranks_text(run),
        purposes=purpose_rows(run),
        stage_names=STAGES,
        facts=facts(run),
        predicted=predicted_rows(run),
        decisions=decisions,
        decisions_left_out=num_omitted_decisions,
        notices=notices,
        notices_left_out=notices_left_out,
        charts=run_charts(run),
        confusion=confusion_rows(run),
        traces=[(trace.name, _link(trace, folder or run.path)) for trace in run.traces],
        environment=environment_rows(run.environment),
    )


def comparison_page(runs: Sequence[RunRecord]) -> str:
    """Render the page that compares runs, one per column."""
    names = unique_names(runs)
    columns = [dict([*facts(run), *key_figures(run), *_stage_facts(run)]) for run in runs]
    rows = list(dict.fromkeys(name for column in columns for name in column))
    settings = [dict(_flatten(run.settings)) for run in runs]
    keys = list(dict.fromkeys(key for run_settings in settings for key in run_settings))
    return render(
        "beside.html",
        title=f"{len(runs)} runs compared",
        names=names,
        rows=[(row, [column.get(row, "") for column in columns]) for row in rows],
        differences=[
            (key, [run_settings.get(key, "") for run_settings in settings])
            for key in keys
            if len({run_settings.get(key) for run_settings in settings}) > 1
        ],
        charts=comparison_charts(runs, names),
    )


def unique_names(runs: Sequence[RunRecord]) -> list[str]:
    """Return unique names: the names of folders, or the paths of folders with equal names."""
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else str(run.path) for name, run in zip(names, runs, strict=True)]


def key_figures(run: RunRecord) -> list[tuple[str, str]]:
    """Return the most important results."""
    summary, steps = run.summary, run.select("steps")
    rows = [("status", run.status)]
    for split in ("test", "val"):
        metrics = (summary.get("metrics") or {}).get(split) or {}
        chosen = summary.get("chosen_by")
        if metrics.get(chosen) is not None:
            rows.append((f"{split} {chosen}", f"{metrics[chosen]:.4f}"))
            break
    if summary.get("epoch_s"):
        rows.append(("median epoch", format_duration(summary["epoch_s"])))
    if steps:
        rows += [
            ("median step", format_duration(median(steps, "step_s"))),
            ("median MTEPS", f"{median(steps, 'mteps'):.3g}"),
            ("memory", format_bytes(max(line["memory_bytes"] for line in steps))),
        ]
    return rows


def environment_rows(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Format the contents of env.json as rows."""
    rows = []
    for name, value in _flatten(environment):
        text = "not limited" if value == "None" and name.startswith("cgroup.") else value
        if name.endswith("_bytes") and value.isdecimal():
            text = format_bytes(int(value))
        # Environment variables keep their names.
        is_variable = name.startswith("variables.")
        rows.append((name if is_variable else name.removesuffix("_bytes").replace("_", " "), text))
    words = environment.get("command")
    if isinstance(words, list):
        rows = [
            (name, " ".join(map(quote_path, map(str, words))) if name == "command" else text)
            for name, text in rows
        ]
    return rows


def facts(run: RunRecord) -> list[tuple[str, str]]:
    """Return the main results and settings of a run from summary.json."""
    summary = run.summary
    rows = [("status", run.status + (", simulated" if summary.get("simulated") else ""))]
    if summary.get("error"):
        rows.append(("error", str(summary["error"])))
    rows += [
        (name, str(run.settings[name][key]))
        for name, key in (("data", "source"), ("model", "kind"), ("sampler", "kind"))
        if run.settings.get(name, {}).get(key)
    ]
    for split, metrics in (summary.get("metrics") or {}).items():
        rows += [(f"{split} {name}", f"{value:.4f}") for name, value in metrics.items() if value is not None]

    formatters: dict[str, tuple[str, Callable[[Any], str]]] = {
        "best_epoch": ("best epoch", str),
        "epochs": ("epochs", str),
        "steps": ("steps", str),
        "epoch_s": ("median epoch", format_duration),
        "iteration_s": ("mean step", format_duration),
        "trained_s": ("trained for", format_duration),
        "peak_memory_bytes": ("peak memory", format_bytes),
        "devices": ("devices", lambda names: ", ".join(run.label_device(name) for name in names)),
        "split": ("last split", lambda split: _split_text(run, split)),
        "threads": ("last threads", pairs),
    }
    rows += [
        (name, form(summary[key])) for key, (name, form) in formatters.items() if summary.get(key) is not None
    ]
    lost = summary.get("devices_lost") or {}
    rows += [(f"lost {name}", str(reason)) for name, reason in lost.items()]
    for name, figures in newest_chunks(run).items():
        summary_of_chunks, shown = (
            ChunkSummary.from_stats(name, figures, run.label_device),
            run.label_device(name),
        )
        rows += [
            (label, text)
            for label, text in (
                (f"chunks on {shown}", summary_of_chunks.cut),
                (f"rows copied to {shown}", summary_of_chunks.filtered),
                *((f"transfer of {device}", text) for device, text in summary_of_chunks.devices.items()),
                (f"what bounds {shown}", summary_of_chunks.bound),
            )
            if text
        ]
    for name, cache in (summary.get("device_caches") or {}).items():
        text = (
            f"{cache['rows']:,} rows ({format_bytes(cache['bytes'])}), hit rate {cache['hit_rate']:.1%} "
            f"({cache['predicted_hit_rate']:.1%} predicted)"
        )
        rows.append((f"feature cache of {run.label_device(name)}", text))
    balance = summary.get("balance") or {}
    if balance:
        count = balance.get("decisions")
        rows.append(("resource manager", f"{balance.get('policy')}, {count} decision{'s' * (count != 1)}"))
    steps = run.select("steps")
    if steps and "steps" not in summary:
        # There is no summary if the run has failed, was killed or is still running, so use its metrics.
        last = steps[-1]
        rows += [
            ("steps", f"{last['step']}, according to metrics.jsonl"),
            ("last split", _split_text(run, last["split"])),
            ("last threads", pairs(last["threads"])),
        ]
    return rows


def newest_chunks(run: RunRecord) -> Mapping[str, Mapping[str, Any]]:
    """Return the chunk statistics of the latest step by trainer."""
    steps = run.select("steps")
    chunks: Mapping[str, Mapping[str, Any]] = run.summary.get("chunks") or (
        steps[-1].get("chunks", {}) if steps else {}
    )
    return chunks


def _chunk_bottleneck_text(run: RunRecord) -> str:
    """Describe the bottleneck of the slowest trainer in the latest step; empty without chunks."""
    chunks = newest_chunks(run)
    if not chunks:
        return ""
    name = max(chunks, key=lambda name: chunks[name].get("step_s") or 0.0)
    bound = ChunkSummary.from_stats(name, chunks[name], run.label_device).bound
    qualifier = "" if len(chunks) == 1 else f" of {run.label_device(name)}, which took longest,"
    return f"In chunks, the newest step{qualifier} is {bound}." if bound else ""


def _split_text(run: RunRecord, split: Mapping[str, int]) -> str:
    return pairs({run.label_device(name): units for name, units in split.items()})


def _stage_facts(run: RunRecord) -> list[tuple[str, str]]:
    """Return the stage rows for a comparison page, with the median times from the page of each run."""
    rows = stage_rows(run)
    slowest = [f"{row.name}, in {row.bounds} of the steps" for row in rows if row.is_bottleneck]
    return [("slowest stage", stage) for stage in slowest] + [
        (f"{row.name}, median", row.work) for row in rows
    ]


def _link(trace: Path, folder: Path) -> str:
    return quote(os.path.relpath(trace.resolve(), folder.resolve()))


def _abbreviate(lines: Sequence[Line]) -> tuple[Sequence[Line], int]:
    """Return the first and last lines of a long list, and the number of lines in between."""
    if len(lines) <= _MAX_FIRST_LINES + _MAX_LAST_LINES:
        return lines, 0
    return [*lines[:_MAX_FIRST_LINES], *lines[-_MAX_LAST_LINES:]], len(
        lines
    ) - _MAX_FIRST_LINES - _MAX_LAST_LINES


def predicted_rows(run: RunRecord) -> list[tuple[str, str, str, str]]:
    """Compare predicted with median times of stages, step and epoch; empty without a prediction."""
    expected = run.summary.get("predicted") or {}
    if not expected:
        return []
    predicted_s_by_stage, steps = expected.get("stages_s") or {}, run.select("steps")
    # Use medians, because the first steps include compilation.
    rows = [
        (stage, predicted_s_by_stage.get(stage), median(steps, "stage_s", stage) if steps else None)
        for stage in STAGES
    ]
    rows.append(("a step", expected.get("iteration_s"), median(steps, "step_s") if steps else None))
    rows.append(("an epoch", expected.get("epoch_s"), run.summary.get("epoch_s")))
    return [
        (
            name,
            "" if predicted_s is None else format_duration(predicted_s),
            "" if measured_s is None else format_duration(measured_s),
            f"{predicted_s / measured_s - 1:+.1%}" if predicted_s is not None and measured_s else "",
        )
        for name, predicted_s, measured_s in rows
    ]


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)
