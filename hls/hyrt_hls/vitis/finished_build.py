"""Design and part of a finished build, and comparison of its reports with the estimates."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hyrt_perfmodel.cycles.design import FpgaDesign

from hyrt_hls.parts.part import Part, load_part, part_names
from hyrt_hls.parts.resources import estimate
from hyrt_hls.vitis.vpp_report import INTERVALS, HlsReport, interval_of, read_reports, slowest, with_reports

TOLD_BY = "hyrt_train.json"
"""Design file that the Makefile writes before it compiles; in the folder of the reports or above."""

_TOP = "hyrt_train"
_SIZES = ("pes", "mac_rows", "mac_cols", "fifo_depth", "adder_latency")
# Vitis HLS names the module of a template after its arguments: systolic<Design<8, 32, 64, 32768>> is
# systolic_Design_8_32_64_32768_s.
_DESIGN_OF_MODULE = re.compile(r"(?:^|_)Design_(\d+)_(\d+)_(\d+)_(\d+)(?:_|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A build and its reports."""

    path: Path
    """The design file."""
    design: FpgaDesign
    """The requested design: sizes and clock."""
    arena_words: int
    """Words per bank."""
    reports: tuple[HlsReport, ...]
    """Reports of its modules."""


@dataclass(frozen=True, slots=True)
class Compared:
    """An estimated value and its value in a build report."""

    what: str
    """Name of the value, with its unit."""
    estimated: float
    reported: float
    module: str
    """Module of the report."""

    @property
    def ratio(self) -> float:
        """Return the reported value divided by the estimated value."""
        return self.reported / self.estimated if self.estimated else math.inf


def read_build(place: Path, part: Part) -> Build:
    """Read the reports in a folder; all must belong to one design, compiled for the given part.

    Parameters
    ----------
    place
        Folder of a build, or one report in it; `hyrt_train.json` is in the folder of the reports or above.
    part
        The part to compare the reports with.

    Raises
    ------
    ValueError
        If a file cannot be read, or a report is for another part, a design other than in `hyrt_train.json`,
        or another build than the rest. The message has the file and the difference.
    """
    reports = read_reports(place)
    for report in reports:
        _check_part(report, part)
    designs: dict[Path, tuple[FpgaDesign, int]] = {}
    for report in reports:
        path = _find_design_file(report.path)
        if path not in designs:
            designs[path] = _read_design(path)
        _check_module(report, path, *designs[path])
    first, *rest = designs
    for other in rest:
        if designs[other] != designs[first]:
            raise ValueError(
                f"{place} has reports of several designs: "
                f"{_differences(first, designs[first], other, designs[other])}: give the folder of one build"
            )
    design, arena_words = designs[first]
    return Build(path=first, design=design, arena_words=arena_words, reports=tuple(reports))


def part_of(place: Path) -> Part:
    """Identify the FPGA part from the build reports in a folder.

    Raises
    ------
    ValueError
        If a report cannot be read, or its chip is not one of the built-in parts.
    """
    report = read_reports(place)[0]
    if known := _matching_parts(report):
        return known[0]
    raise ValueError(
        f"{report.path}: {report.module} was compiled for {report.part or 'an unnamed part'}, which is "
        f"not one of {', '.join(part_names())}"
    )


def compare(build: Build) -> list[Compared]:
    """Compare estimates with reports: resources (of the whole kernel), clock, initiation intervals."""
    comparisons = []
    for report in build.reports:
        if report.module == _TOP:
            expected, reported = estimate(build.design, build.arena_words), report.resources
            comparisons = [
                Compared("DSP", expected.dsp, reported.dsp, _TOP),
                Compared("LUT", expected.lut, reported.lut, _TOP),
                Compared("BRAM", expected.bram36, reported.bram36, _TOP),
                Compared("URAM", expected.uram, reported.uram, _TOP),
            ]
    last = slowest(build.reports)
    comparisons.append(Compared("clock, MHz", build.design.clock_hz / 1e6, last.clock_hz / 1e6, last.module))
    for name, functions in INTERVALS.items():
        for function in functions:
            interval = interval_of(build.reports, function)
            if interval is not None:
                assumed = getattr(build.design, name)
                comparisons.append(Compared(f"interval of {function}, cycles", assumed, interval, function))
    return comparisons


def _check_part(report: HlsReport, part: Part) -> None:
    if not report.part:
        raise ValueError(
            f"{report.path}: the element UserAssignments/Part is missing, so it is unknown whether the "
            f"report is for {part.name}"
        )
    if report.part.lower() == part.device.lower():
        return
    matching = _matching_parts(report)
    argument = f"--part {matching[0].name}" if matching else "a part with that device (a .yaml file)"
    raise ValueError(
        f"{report.path}: {report.module} was compiled for {report.part}, but {part.name} is "
        f"{part.device}: give {argument}, or reports of a build for {part.name}"
    )


def _matching_parts(report: HlsReport) -> list[Part]:
    return [part for part in map(load_part, part_names()) if part.device.lower() == report.part.lower()]


def _find_design_file(report: Path) -> Path:
    # Search relative parents first, so that messages show the path as given by the user.
    for folder in (*report.parents, *report.absolute().parents):
        if (folder / TOLD_BY).is_file():
            return folder / TOLD_BY
    raise ValueError(
        f"{report}: there is no {TOLD_BY} beside or above it, so its design is unknown: give the "
        f"folder that hyrt's Makefile built in, or copy its {TOLD_BY} along with the reports"
    )


def _read_design(path: Path) -> tuple[FpgaDesign, int]:
    try:
        values: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} is not a JSON object with {', '.join(_SIZES)}, arena_words and clock_mhz")
    clock_mhz, arena_words = values.get("clock_mhz"), values.get("arena_words")
    if isinstance(clock_mhz, bool) or not isinstance(clock_mhz, int | float) or not 0 < clock_mhz < math.inf:
        raise ValueError(f"{path}: clock_mhz is {clock_mhz!r}, not a number above 0")
    if isinstance(arena_words, bool) or not isinstance(arena_words, int) or arena_words < 1:
        raise ValueError(f"{path}: arena_words is {arena_words!r}, not a whole number of at least 1")
    sizes: dict[str, Any] = {name: values.get(name) for name in _SIZES}
    try:
        return FpgaDesign(**sizes, clock_hz=clock_mhz * 1e6), arena_words
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _check_module(report: HlsReport, path: Path, design: FpgaDesign, arena_words: int) -> None:
    """Check for left-over reports of another design in a folder that was used for two builds."""
    name_match = _DESIGN_OF_MODULE.search(report.module)
    if name_match is None:
        return
    expected = {
        "pes": design.pes,
        "mac_rows": design.mac_rows,
        "mac_cols": design.mac_cols,
        "arena_words": arena_words,
    }
    different = [
        f"{name} {number} instead of {value}"
        for (name, value), number in zip(expected.items(), name_match.groups(), strict=True)
        if int(number) != value
    ]
    if different:
        raise ValueError(
            f"{report.path}: {report.module} has {', '.join(different)} as in {path}: it belongs to "
            "another build"
        )


def _differences(a: Path, first: tuple[FpgaDesign, int], b: Path, second: tuple[FpgaDesign, int]) -> str:
    names = [*_SIZES, "clock_hz"]
    first_values = {name: getattr(first[0], name) for name in names} | {"arena_words": first[1]}
    second_values = {name: getattr(second[0], name) for name in names} | {"arena_words": second[1]}
    different = [
        f"{name} {first_values[name]:g} and {second_values[name]:g}"
        for name in first_values
        if first_values[name] != second_values[name]
    ]
    return f"{a} and {b} differ in {', '.join(different)}"


def modelled(build: Build, part: Part) -> FpgaDesign:
    """Return the design for the cycle model: clock and intervals from the reports, memory from the part."""
    # Features are read through one port, from one bank.
    return with_reports(replace(build.design, ddr_bytes_per_s=part.bank_bytes_per_s), build.reports)


def check_fifo_depth(build: Build, asked: int | None) -> None:
    """Check that a requested FIFO depth equals that of the build.

    Raises
    ------
    ValueError
        If it differs.
    """
    if asked is not None and asked != build.design.fifo_depth:
        raise ValueError(
            f"{build.path}: the build has fifo_depth {build.design.fifo_depth}, not {asked}: omit "
            "--fifo-depth, or give the reports of a build with that depth"
        )
