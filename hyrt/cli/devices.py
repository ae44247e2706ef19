"""`hyrt devices`: show the devices, their speed, and why other devices are unavailable."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hyrt.cli.options import AsJson
from hyrt.formatting import format_bytes

if TYPE_CHECKING:
    from hyrt.device import DeviceInfo
    from hyrt.device.discovery import ProbeResult
    from hyrt.predict.calibrate.store import DeviceSpeed

# On a narrower terminal, its own line wrapping is no worse.
_MIN_WIDTH = 40
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
    """Show the devices that can train, and why others cannot.

    \b
    Examples:
      hyrt devices
      hyrt devices --measure
      hyrt run --devices cpu,opencl:0
    """  # noqa: D301
    import json
    import shutil

    from hyrt.device.discovery import survey_devices
    from hyrt.predict.calibrate.store import device_speed, read_measured

    surveys = survey_devices()
    notes = _measure(surveys) if measure else []
    measured = read_measured()
    speeds = {info.name: device_speed(info, measured) for survey in surveys for info in survey.found}
    if as_json:
        typer.echo(json.dumps(_facts(surveys, speeds), indent=2))
    else:
        # Wrap lines in pipes as well, because people read that output; programs use --json.
        for line in _lines(surveys, speeds, shutil.get_terminal_size().columns):
            typer.echo(line)
    for note in notes:
        typer.echo(note, err=True)


def _measure(surveys: Sequence[ProbeResult]) -> list[str]:
    """Measure every real device once. Return a line for each device that cannot be measured."""
    from hyrt.predict.calibrate.store import real_devices, save_calibration
    from hyrt.runtime.process_setup import prepare_process

    prepare_process()
    from hyrt.predict.calibrate.machine import measure_devices

    measured, failures = measure_devices(
        real_devices(surveys), lambda text: typer.echo(f"measuring {text} ...", err=True)
    )
    save_calibration(measured)
    return [f"{name} could not be measured: {reason}" for name, reason in failures.items()]


def _facts(surveys: Sequence[ProbeResult], speeds: Mapping[str, DeviceSpeed]) -> dict[str, Any]:
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
                    # JSON has no infinity, so the rate is null for devices that read host memory in place.
                    rates["link_bytes_per_s"] = None
            listed.append({**facts, "provider": survey.provider, "rates": rates})
    problems = [
        {"kind": survey.kind, "provider": survey.provider, "problem": survey.problem}
        for survey in surveys
        if survey.problem
    ]
    return {"hyrt": __version__, "devices": listed, "problems": problems}


def _lines(surveys: Sequence[ProbeResult], speeds: Mapping[str, DeviceSpeed], width: int) -> Iterator[str]:
    """Yield the name and description of each device, wrapped to the width of the output."""
    rows: list[tuple[str, list[str]]] = []
    for survey in surveys:
        alike: dict[str, list[DeviceInfo]] = {}
        for info in survey.found:
            alike.setdefault(info.description, []).append(info)
        plug_in = f" [plug-in {survey.provider}]" if survey.is_foreign else ""
        for info, *others in alike.values():
            name = f"{info.name} to {others[-1].index}" if others else info.name
            description = f"{info.description}{' (simulated)' if info.simulated else ''}{plug_in}"
            rows.append((name, [description, _figures(info, speeds[info.name])]))
        if survey.problem:
            rows.append((survey.kind, [f"{survey.problem}{plug_in}"]))
    start = 2 + max((len(name) for name, _ in rows), default=0)
    for name, texts in rows:
        first, *more = _wrapped(texts, width - start)
        yield f"{name:{start}}{first}"
        yield from (" " * start + line for line in more)
    if any(known.rates and known.rates.source.startswith("assumed") for known in speeds.values()):
        note = (
            "assumed rates are estimates from data sheets and clock rates; run `hyrt devices "
            "--measure` to measure them"
        )
        yield from _wrapped([note], width)


def _wrapped(texts: Sequence[str], width: int) -> list[str]:
    """Wrap paragraphs into lines, but do not split addresses or paths, which users may copy."""
    wrapper = textwrap.TextWrapper(max(_MIN_WIDTH, width), break_long_words=False, break_on_hyphens=False)
    return [line for text in texts for line in wrapper.wrap(text)]


def _figures(info: DeviceInfo, known: DeviceSpeed) -> str:
    """Return the memory, the link and the rates of a device, if known."""
    memory = format_bytes(info.memory_bytes) if info.memory_bytes else ""
    rates, stale = known.rates, f" ({known.not_used})" if known.not_used else ""
    if rates is None:
        return ", ".join(filter(None, [memory, info.link, f"rates unknown{stale}"]))
    link = info.link
    if math.isfinite(rates.link_bytes_per_s):
        link += f" {rates.link_bytes_per_s / 1e9:.3g} GB/s"
    speed = f"{2 * rates.macs_per_s / 1e9:,.0f} GFLOP/s, {rates.memory_bytes_per_s / 1e9:,.3g} GB/s"
    source = rates.source.partition(":")[0]
    return ", ".join(filter(None, [memory, link, f"{speed} {source}{stale}"]))
