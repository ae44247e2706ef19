"""Self-contained page report.html of a run, and comparisons of several runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hyrt_perfmodel.policy import STAGES

from hyrt.formatting import format_bytes, format_duration
from hyrt.report.html.chart import pairs, render
from hyrt.report.html.overview import (
    bottleneck_text,
    confusion_rows,
    purpose_rows,
    rank_rows,
    ranks_text,
    stage_rows,
    trainer_rows,
)
from hyrt.report.html.run_charts import comparison_charts, run_charts
from hyrt.report.records.run_record import Line, RunRecord, median
from hyrt.report.step_summary import ChunkSummary
from hyrt.report.terminal.printed_lines import quote_path

REPORT = "report.html"
# Numbers of decisions and notices that a long run lists.
_MAX_FIRST_LINES, _MAX_LAST_LINES = 50, 150


def run_page(run: RunRecord, folder: Path | None = None) -> str:
    """Render the page of one run, with links relative to `folder`, by default the run folder."""
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
    """Return unique names: the folder names, or paths for equal folder names."""
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
        # Keep the names of environment variables.
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
    """Return the main results and settings from summary.json."""
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
        # Without a summary (the run failed, was killed, or is still running), use the metrics.
        last = steps[-1]
        rows += [
            ("steps", f"{last['step']}, as far as metrics.jsonl goes"),
            ("last split", _split_text(run, last["split"])),
            ("last threads", pairs(last["threads"])),
        ]
    return rows


def newest_chunks(run: RunRecord) -> Mapping[str, Mapping[str, Any]]:
    """Return the chunk statistics of the newest step, by trainer."""
    steps = run.select("steps")
    chunks: Mapping[str, Mapping[str, Any]] = run.summary.get("chunks") or (
        steps[-1].get("chunks", {}) if steps else {}
    )
    return chunks


def _chunk_bottleneck_text(run: RunRecord) -> str:
    """Describe the bottleneck of the slowest trainer in the newest step in chunks; empty without chunks."""
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
    """Return the stage rows of a comparison: median times as on the run's page."""
    rows = stage_rows(run)
    slowest = [f"{row.name}, in {row.bounds} of the steps" for row in rows if row.is_bottleneck]
    return [("slowest stage", stage) for stage in slowest] + [
        (f"{row.name}, median", row.work) for row in rows
    ]


def _link(trace: Path, folder: Path) -> str:
    return quote(os.path.relpath(trace.resolve(), folder.resolve()))


def _abbreviate(lines: Sequence[Line]) -> tuple[Sequence[Line], int]:
    """Return the first and last lines of a long list, and the number of omitted lines."""
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
    # Medians, because the first steps also compile.
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
