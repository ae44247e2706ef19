"""`hyrt devices`: show the devices, their speed, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyrt.cli.options import AsJson

if TYPE_CHECKING:
    from hyrt.device import DeviceInfo
    from hyrt.device.discovery import Survey
    from hyrt.predict.calibrate.store import KnownSpeed


_FACTS = (
    *("name", "kind", "index", "description", "memory_bytes"),
    *("zero_copy", "host_cores", "link", "simulated"),
)


def devices(
    as_json: AsJson = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure the devices' rates first, and store them.")
    ] = False,
) -> None:
    """Show the devices that can train, and what is missing for the others.

    \b
    Examples:
      hyrt devices
      hyrt devices --measure
      hyrt run --devices cpu,opencl:0
    """  # noqa: D301
    import json

    from hyrt.device.discovery import survey_devices
    from hyrt.predict.calibrate.store import known_speed, read_measured, why_old

    surveys = survey_devices()
    notes = _measure(surveys) if measure else []
    measured = read_measured()
    speeds = {info.name: known_speed(info, measured) for survey in surveys for info in survey.found}
    if as_json:
        typer.echo(json.dumps(_facts(surveys, speeds), indent=2))
    else:
        for line in _lines(surveys, speeds):
            typer.echo(line)
    for note in filter(None, [*notes, why_old()]):
        typer.echo(note, err=True)


def _measure(surveys: Sequence[Survey]) -> list[str]:
    """Measure every real device once; what could not be measured, as lines."""
    from hyrt.machine.process_settings import prepare_process
    from hyrt.predict.calibrate.store import keep, real_devices

    prepare_process()
    from hyrt.predict.calibrate.machine import measure_devices

    found, left_out = measure_devices(
        real_devices(surveys), lambda text: typer.echo(f"measuring {text} ...", err=True)
    )
    keep(found)
    return [f"{name} could not be measured: {reason}" for name, reason in left_out.items()]


def _facts(surveys: Sequence[Survey], speeds: Mapping[str, KnownSpeed]) -> dict[str, Any]:
    from dataclasses import asdict

    from hyrt import __version__

    listed = []
    for survey in surveys:
        for info in survey.found:
            facts = {key: getattr(info, key) for key in _FACTS}
            known = speeds[info.name]
            if known.rates is None:
                rates = None
            else:
                rates = {**asdict(known.rates), "not_used": known.not_used}
                if not math.isfinite(rates["link_bytes_per_s"]):
                    # JSON has no infinity: none where host memory is read in place.
                    rates["link_bytes_per_s"] = None
            listed.append({**facts, "provider": survey.provider, "rates": rates})
    problems = [
        {"kind": survey.kind, "provider": survey.provider, "problem": survey.problem}
        for survey in surveys
        if survey.problem
    ]
    return {"hyrt": __version__, "devices": listed, "problems": problems}


def _lines(surveys: Sequence[Survey], speeds: Mapping[str, KnownSpeed]) -> list[str]:
    rows: list[tuple[str, str, str, str, str]] = []
    assumed = False
    for survey in surveys:
        alike: dict[str, list[DeviceInfo]] = {}
        for info in survey.found:
            alike.setdefault(info.description, []).append(info)
        for group in alike.values():
            rows.append(_row(group, survey, speeds))
            assumed = assumed or "assumed" in rows[-1][4]
        if survey.problem:
            name = f"{survey.kind} (plug-in {survey.provider})" if survey.is_foreign else survey.kind
            rows.append((name, survey.problem, "", "", ""))
    columns = [max((len(row[i]) for row in rows if row[i + 1]), default=0) for i in range(4)]
    lines = []
    for row in rows:
        padded = [text.ljust(width) for text, width in zip(row[:4], columns, strict=True)]
        lines.append("  ".join([*padded, row[4]] if any(row[2:]) else [padded[0], row[1]]).rstrip())
    if assumed:
        lines.append(
            "assumed rates are estimates from data sheets and clock rates; `hyrt devices --measure` "
            "measures them"
        )
    return lines


def _row(
    group: Sequence[DeviceInfo], survey: Survey, speeds: Mapping[str, KnownSpeed]
) -> tuple[str, str, str, str, str]:
    info = group[0]
    rates, stale = speeds[info.name].rates, speeds[info.name].not_used
    name = info.name if len(group) == 1 else f"{info.name} to {group[-1].index}"
    memory = f"{info.memory_bytes / 2**30:.3g} GiB" if info.memory_bytes else "-"
    description = " ".join(info.description.split())
    if info.simulated:
        description += " (simulated)"
    if survey.is_foreign:
        description += f" [plug-in {survey.provider}]"
    if rates is None:
        return name, description, memory, info.link or "-", f"rates unknown{f' ({stale})' if stale else ''}"
    speed = f"{2 * rates.macs_per_s / 1e9:,.0f} GFLOP/s, {rates.memory_bytes_per_s / 1e9:,.3g} GB/s"
    link = info.link
    if math.isfinite(rates.link_bytes_per_s):
        link += f" {rates.link_bytes_per_s / 1e9:.3g} GB/s"
    source = rates.source.partition(":")[0]
    return name, description, memory, link, f"{speed} {source}{f' ({stale})' if stale else ''}"
