"""report.html: one page without scripts or network that shows what a run did, or compares several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hyrt.report.html.charts_of_run import STAGES, charts_beside, charts_of
from hyrt.report.html.run_record import RunRecord
from hyrt.report.html.units import gibibytes, percent, seconds, signed_percent

REPORT = "report.html"


def page_of(run: RunRecord) -> str:
    """The page of one run."""
    return _render(
        "run.html",
        run=run,
        title=run.name,
        facts=facts(run),
        predicted=predicted_rows(run),
        decisions=run.of("balanced"),
        notices=run.of("notice"),
        charts=charts_of(run),
        environment=list(_flat(run.environment)),
    )


def page_beside(runs: Sequence[RunRecord]) -> str:
    """The page that compares runs, one column each."""
    names = labels(runs)
    columns = [dict(facts(run)) for run in runs]
    rows = list(dict.fromkeys(name for column in columns for name in column))
    settings = [dict(_flat(run.settings)) for run in runs]
    keys = list(dict.fromkeys(key for each in settings for key in each))
    return _render(
        "beside.html",
        title=f"{len(runs)} runs beside each other",
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


def facts(run: RunRecord) -> list[tuple[str, str]]:
    """What a reader asks first, as summary.json has it."""
    summary = run.summary
    found = [("status", run.status + (", simulated" if summary.get("simulated") else ""))]
    for split, metrics in (summary.get("metrics") or {}).items():
        found += [(f"{split} {name}", f"{value:.4f}") for name, value in metrics.items() if value is not None]

    def add(name: str, key: str, form: Any = str) -> None:
        if summary.get(key) is not None:
            found.append((name, form(summary[key])))

    add("best epoch", "best_epoch")
    add("epochs", "epochs")
    add("steps", "steps")
    add("an epoch", "epoch_s", seconds)
    add("a step", "iteration_s", seconds)
    add("trained for", "trained_s", seconds)
    add("peak memory", "peak_memory_bytes", gibibytes)
    add("devices", "devices", ", ".join)
    add("last split", "split", _pairs)
    add("last threads", "threads", _pairs)
    lost = summary.get("devices_lost") or {}
    found += [(f"lost {name}", str(reason)) for name, reason in lost.items()]
    balance = summary.get("balance") or {}
    if balance:
        found.append(("resource manager", f"{balance.get('policy')}, {balance.get('decisions')} decisions"))
    error = summary.get("error")
    return [*found, ("error", str(error))] if error else found


def predicted_rows(run: RunRecord) -> list[tuple[str, str, str, str]]:
    """What was predicted, what was measured and how far it was off, for stages, step and epoch; empty without a prediction."""
    expected = run.summary.get("predicted") or {}
    if not expected:
        return []
    measured_stages = run.summary.get("stages_s") or {}
    pairs = [
        *(
            (stage, (expected.get("stages_s") or {}).get(stage), measured_stages.get(stage))
            for stage in STAGES
        ),
        ("a step", expected.get("iteration_s"), run.summary.get("iteration_s")),
        ("an epoch", expected.get("epoch_s"), run.summary.get("epoch_s")),
    ]
    return [
        (
            name,
            "" if said is None else seconds(said),
            "" if seen is None else seconds(seen),
            signed_percent(said / seen - 1) if said is not None and seen else "",
        )
        for name, said, seen in pairs
    ]


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _render(template: str, **values: Any) -> str:
    environment = Environment(
        loader=PackageLoader("hyrt.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"seconds": seconds, "percent": percent, "pairs": _pairs}
    style = Path(__file__).with_name("templates").joinpath("style.css").read_text(encoding="utf-8")
    return environment.get_template(template).render(style=Markup(style), Markup=Markup, **values)
