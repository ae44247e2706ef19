"""report.html: one page without network that shows what a run did, or compares several."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hyrt_perfmodel.assignment import STAGES

from hyrt.quantities import duration, size
from hyrt.report.chunk_words import ChunkWords
from hyrt.report.html.at_a_glance import bottleneck_text, stage_rows, trainer_rows
from hyrt.report.html.charts_of_run import charts_beside, charts_of
from hyrt.report.html.confusion_of_run import confusion_rows
from hyrt.report.html.ranks_of_run import purpose_rows, rank_rows, ranks_text
from hyrt.report.html.render import pairs, render
from hyrt.report.records.run_record import Line, RunRecord, median
from hyrt.report.terminal.printed_lines import shell_word

REPORT = "report.html"
# Decisions and notices that a page lists, of long runs.
_FIRST, _LAST = 50, 150


def page_of(run: RunRecord, folder: Path | None = None) -> str:
    """The page of one run.

    Parameters
    ----------
    run
        The record of the run.
    folder
        The folder in which the page will be, for links to the run's files; by default the run's folder.
    """
    stages = stage_rows(run)
    decisions, decisions_left_out = _ends(run.of("balanced"))
    notices, notices_left_out = _ends(run.of("notice"))
    return render(
        "run.html",
        run=run,
        title=run.name,
        error=run.summary.get("error"),
        key_figures=key_figures(run),
        stages=stages,
        channels=any(row.waits or row.queue for row in stages),
        trainers=trainer_rows(run),
        bottleneck=" ".join(filter(None, (bottleneck_text(run), _bound_in_chunks(run)))),
        ranks=rank_rows(run),
        ranks_text=ranks_text(run),
        purposes=purpose_rows(run),
        stage_names=STAGES,
        facts=facts(run),
        predicted=predicted_rows(run),
        decisions=decisions,
        decisions_left_out=decisions_left_out,
        notices=notices,
        notices_left_out=notices_left_out,
        charts=charts_of(run),
        confusion=confusion_rows(run),
        traces=[(trace.name, _link(trace, folder or run.path)) for trace in run.traces],
        environment=environment_rows(run.environment),
    )


def page_beside(runs: Sequence[RunRecord]) -> str:
    """The page that compares runs, one column each."""
    names = labels(runs)
    columns = [dict([*facts(run), *key_figures(run), *_stage_facts(run)]) for run in runs]
    rows = list(dict.fromkeys(name for column in columns for name in column))
    settings = [dict(_flat(run.settings)) for run in runs]
    keys = list(dict.fromkeys(key for each in settings for key in each))
    return render(
        "beside.html",
        title=f"{len(runs)} runs compared",
        names=names,
        rows=[(row, [column.get(row, "") for column in columns]) for row in rows],
        differences=[
            (key, [each.get(key, "") for each in settings])
            for key in keys
            if len({each.get(key) for each in settings}) > 1
        ],
        charts=charts_beside(runs, names),
    )


def labels(runs: Sequence[RunRecord]) -> list[str]:
    """Names that tell the runs apart: folders' names, with their places where two are equal."""
    names = [run.name for run in runs]
    return [name if names.count(name) == 1 else str(run.path) for name, run in zip(names, runs, strict=True)]


def key_figures(run: RunRecord) -> list[tuple[str, str]]:
    """The few that stand above all others."""
    summary, steps = run.summary, run.of("steps")
    found = [("status", run.status)]
    for split in ("test", "val"):
        metrics = (summary.get("metrics") or {}).get(split) or {}
        chosen = summary.get("chosen_by")
        if metrics.get(chosen) is not None:
            found.append((f"{split} {chosen}", f"{metrics[chosen]:.4f}"))
            break
    if summary.get("epoch_s"):
        found.append(("median epoch", duration(summary["epoch_s"])))
    if steps:
        found += [
            ("median step", duration(median(steps, "step_s"))),
            ("median MTEPS", f"{median(steps, 'mteps'):.3g}"),
            ("memory", size(max(line["memory_bytes"] for line in steps))),
        ]
    return found


def environment_rows(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """env.json as a person reads it."""
    found = []
    for name, value in _flat(environment):
        text = "not limited" if value == "None" and name.startswith("cgroup.") else value
        if name.endswith("_bytes") and value.isdecimal():
            text = size(int(value))
        # Variables of the environment are called what they are called.
        is_variable = name.startswith("variables.")
        found.append((name if is_variable else name.removesuffix("_bytes").replace("_", " "), text))
    words = environment.get("command")
    if isinstance(words, list):
        found = [
            (name, " ".join(map(shell_word, map(str, words))) if name == "command" else text)
            for name, text in found
        ]
    return found


def facts(run: RunRecord) -> list[tuple[str, str]]:
    """What a reader asks first, as summary.json has it."""
    summary = run.summary
    found = [("status", run.status + (", simulated" if summary.get("simulated") else ""))]
    if summary.get("error"):
        found.append(("error", str(summary["error"])))
    found += [
        (name, str(run.settings[name][key]))
        for name, key in (("data", "source"), ("model", "kind"), ("sampler", "kind"))
        if run.settings.get(name, {}).get(key)
    ]
    for split, metrics in (summary.get("metrics") or {}).items():
        found += [(f"{split} {name}", f"{value:.4f}") for name, value in metrics.items() if value is not None]

    forms: dict[str, tuple[str, Callable[[Any], str]]] = {
        "best_epoch": ("best epoch", str),
        "epochs": ("epochs", str),
        "steps": ("steps", str),
        "epoch_s": ("median epoch", duration),
        "iteration_s": ("mean step", duration),
        "trained_s": ("trained for", duration),
        "peak_memory_bytes": ("peak memory", size),
        "devices": ("devices", lambda names: ", ".join(run.labelled(name) for name in names)),
        "split": ("last split", lambda split: _split(run, split)),
        "threads": ("last threads", pairs),
    }
    found += [
        (name, form(summary[key])) for key, (name, form) in forms.items() if summary.get(key) is not None
    ]
    lost = summary.get("devices_lost") or {}
    found += [(f"lost {name}", str(reason)) for name, reason in lost.items()]
    for name, figures in chunks_of(run).items():
        words, shown = ChunkWords.of(name, figures, run.labelled), run.labelled(name)
        found += [
            (what, text)
            for what, text in (
                (f"chunks on {shown}", words.cut),
                (f"rows copied to {shown}", words.filtered),
                *((f"transfer of {device}", text) for device, text in words.devices.items()),
                (f"what bounds {shown}", words.bound),
            )
            if text
        ]
    for name, kept in (summary.get("device_caches") or {}).items():
        text = (
            f"{kept['rows']:,} rows ({size(kept['bytes'])}): {kept['hit_rate']:.1%} of those that it needed, "
            f"{kept['predicted_hit_rate']:.1%} predicted"
        )
        found.append((f"rows kept by {run.labelled(name)}", text))
    balance = summary.get("balance") or {}
    if balance:
        count = balance.get("decisions")
        found.append(("resource manager", f"{balance.get('policy')}, {count} decision{'s' * (count != 1)}"))
    steps = run.of("steps")
    if steps and "steps" not in summary:
        # It failed, was killed, or goes on: the lines are all that there is.
        last = steps[-1]
        found += [
            ("steps", f"{last['step']}, as far as metrics.jsonl goes"),
            ("last split", _split(run, last["split"])),
            ("last threads", pairs(last["threads"])),
        ]
    return found


def chunks_of(run: RunRecord) -> Mapping[str, Mapping[str, Any]]:
    """By trainer, what its newest step over a whole graph in chunks took."""
    steps = run.of("steps")
    found: Mapping[str, Mapping[str, Any]] = run.summary.get("chunks") or (
        steps[-1].get("chunks", {}) if steps else {}
    )
    return found


def _bound_in_chunks(run: RunRecord) -> str:
    """What bounds the newest step of the trainer that holds a whole graph in chunks and takes longest; empty
    where there is none.
    """
    found = chunks_of(run)
    if not found:
        return ""
    name = max(found, key=lambda name: found[name].get("step_s") or 0.0)
    bound = ChunkWords.of(name, found[name], run.labelled).bound
    of_which = "" if len(found) == 1 else f" of {run.labelled(name)}, which took longest,"
    return f"In chunks, the newest step{of_which} is {bound}." if bound else ""


def _split(run: RunRecord, split: Mapping[str, int]) -> str:
    return pairs({run.labelled(name): units for name, units in split.items()})


def _stage_facts(run: RunRecord) -> list[tuple[str, str]]:
    """What to compare of the stages: the medians that the run's own page has."""
    rows = stage_rows(run)
    slowest = [f"{row.name}, in {row.bounds} of the steps" for row in rows if row.is_bottleneck]
    return [("slowest stage", said) for said in slowest] + [(f"{row.name}, median", row.work) for row in rows]


def _link(trace: Path, folder: Path) -> str:
    return quote(os.path.relpath(trace.resolve(), folder.resolve()))


def _ends(lines: Sequence[Line]) -> tuple[Sequence[Line], int]:
    """The first and the last of many, and how many there are between."""
    if len(lines) <= _FIRST + _LAST:
        return lines, 0
    return [*lines[:_FIRST], *lines[-_LAST:]], len(lines) - _FIRST - _LAST


def predicted_rows(run: RunRecord) -> list[tuple[str, str, str, str]]:
    """Predicted and median times of stages, step and epoch, and the difference; empty if not predicted."""
    expected = run.summary.get("predicted") or {}
    if not expected:
        return []
    said, steps = expected.get("stages_s") or {}, run.of("steps")
    # Medians, since the first steps of a process also compile.
    rows = [(stage, said.get(stage), median(steps, "stage_s", stage) if steps else None) for stage in STAGES]
    rows.append(("a step", expected.get("iteration_s"), median(steps, "step_s") if steps else None))
    rows.append(("an epoch", expected.get("epoch_s"), run.summary.get("epoch_s")))
    return [
        (
            name,
            "" if said_s is None else duration(said_s),
            "" if seen_s is None else duration(seen_s),
            f"{said_s / seen_s - 1:+.1%}" if said_s is not None and seen_s else "",
        )
        for name, said_s, seen_s in rows
    ]


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)
