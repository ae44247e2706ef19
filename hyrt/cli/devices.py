"""`hyrt devices`: show the devices, their speed, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hyrt.device import DeviceInfo
    from hyrt.device.discovery import Survey
    from hyrt.device.rates import MeasuredRates


def devices(
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
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
    from hyrt.device.rates import rates_file, read_rates

    surveys = survey_devices()
    notes = _measure(surveys) if measure else []
    measured = read_rates(rates_file())
    if as_json:
        typer.echo(json.dumps(_facts(surveys, measured), indent=2))
    else:
        for line in _lines(surveys, measured):
            typer.echo(line)
    for note in notes:
        typer.echo(note, err=True)


def _measure(surveys: Sequence[Survey]) -> list[str]:
    """Measure every real device once; what could not be measured, as lines."""
    from hyrt.device.discovery import find_device
    from hyrt.device.rates import rates_file, write_rates
    from hyrt.errors import describe
    from hyrt.machine.cores import available_cores
    from hyrt.machine.process_settings import prepare_process
    from hyrt.predict.measure_rates import measure_rates

    prepare_process()
    notes = []
    for survey in surveys:
        for info in survey.found:
            if info.simulated or (info.kind == "cpu" and info.index):
                continue
            typer.echo(f"measuring {info.name} ...", err=True)
            try:
                backend, there = find_device(info.name)
                rates = measure_rates(backend, there, available_cores())
            except Exception as error:  # A plug-in may raise anything; the others are measured all the same.
                notes.append(f"{info.name} could not be measured: {' '.join(describe(error).split())}")
            else:
                write_rates(rates_file(), {info.name: rates})
    return notes


def _facts(surveys: Sequence[Survey], measured: Mapping[str, MeasuredRates]) -> dict[str, Any]:
    from hyrt import __version__
    from hyrt.device.rates import known_rates

    listed = []
    for survey in surveys:
        for info in survey.found:
            rates, stale = known_rates(info, measured)
            listed.append(
                {
                    "name": info.name,
                    "kind": info.kind,
                    "index": info.index,
                    "provider": survey.provider,
                    "description": info.description,
                    "memory_bytes": info.memory_bytes,
                    "zero_copy": info.zero_copy,
                    "host_cores": info.host_cores,
                    "link": info.link,
                    "simulated": info.simulated,
                    "rates": None
                    if rates is None
                    else {
                        "macs_per_s": rates.macs_per_s,
                        "memory_bytes_per_s": rates.memory_bytes_per_s,
                        # JSON has no infinity: none where host memory is read in place.
                        "link_bytes_per_s": rates.link_bytes_per_s
                        if math.isfinite(rates.link_bytes_per_s)
                        else None,
                        "source": rates.source,
                        "not_used": stale,
                    },
                }
            )
    problems = [
        {"kind": survey.kind, "provider": survey.provider, "problem": survey.problem}
        for survey in surveys
        if survey.problem
    ]
    return {"hyrt": __version__, "devices": listed, "problems": problems}


def _lines(surveys: Sequence[Survey], measured: Mapping[str, MeasuredRates]) -> list[str]:
    rows: list[tuple[str, str, str, str, str]] = []
    assumed = False
    for survey in surveys:
        alike: dict[str, list[DeviceInfo]] = {}
        for info in survey.found:
            alike.setdefault(info.description, []).append(info)
        for group in alike.values():
            rows.append(_row(group, survey, measured))
            assumed = assumed or "assumed" in rows[-1][4]
        if survey.problem:
            is_own = survey.provider.startswith("hyrt ")
            name = survey.kind if is_own else f"{survey.kind} (plug-in {survey.provider})"
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
    group: Sequence[DeviceInfo], survey: Survey, measured: Mapping[str, MeasuredRates]
) -> tuple[str, str, str, str, str]:
    from hyrt.device.rates import known_rates

    info = group[0]
    rates, stale = known_rates(info, measured)
    name = info.name if len(group) == 1 else f"{info.name} to {group[-1].index}"
    memory = f"{info.memory_bytes / 2**30:.3g} GiB" if info.memory_bytes else "-"
    description = " ".join(info.description.split())
    if info.simulated:
        description += " (simulated)"
    if not survey.provider.startswith("hyrt "):
        description += f" [plug-in {survey.provider}]"
    if rates is None:
        return name, description, memory, info.link or "-", f"rates unknown{f' ({stale})' if stale else ''}"
    speed = f"{2 * rates.macs_per_s / 1e9:,.0f} GFLOP/s, {rates.memory_bytes_per_s / 1e9:,.3g} GB/s"
    link = info.link
    if math.isfinite(rates.link_bytes_per_s):
        link += f" {rates.link_bytes_per_s / 1e9:.3g} GB/s"
    source = rates.source.partition(":")[0]
    return name, description, memory, link, f"{speed} {source}{f' ({stale})' if stale else ''}"
