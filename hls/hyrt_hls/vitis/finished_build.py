"""Of which part and which design reports are, and what they tell beside what was estimated."""

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
"""Beside or above the reports: what the Makefile writes of the design before it compiles."""

_TOP = "hyrt_train"
_SIZES = ("pes", "mac_rows", "mac_cols", "fifo_depth", "adder_latency")
# Vitis HLS names the module of a template after its arguments: systolic<Design<8, 32, 64, 32768>> is
# systolic_Design_8_32_64_32768_s.
_DESIGN_OF_MODULE = re.compile(r"(?:^|_)Design_(\d+)_(\d+)_(\d+)_(\d+)(?:_|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """A build, and its reports."""

    path: Path
    """The file that tells the design."""
    design: FpgaDesign
    """What was asked for: sizes, and the clock."""
    arena_words: int
    """Words of each bank."""
    reports: tuple[HlsReport, ...]
    """The reports of its modules."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure that was estimated, and what a build reports."""

    what: str
    """The figure's name, with the unit."""
    estimated: float
    reported: float
    module: str
    """The module whose report tells it."""

    @property
    def ratio(self) -> float:
        """Reported by estimated."""
        return self.reported / self.estimated if self.estimated else math.inf


def read_build(place: Path, part: Part) -> Build:
    """The reports in a folder, all of one design, which was compiled for a part.

    Parameters
    ----------
    place
        A build's folder (or one report in it): `hyrt_train.json` is beside the reports or in a folder above.
    part
        The part that the reports are to be compared with.

    Raises
    ------
    ValueError
        If a file cannot be read; or if a report is of another part, of another design than `hyrt_train.json`
        tells, or of another build than the rest: naming file and difference.
    """
    reports = read_reports(place)
    for report in reports:
        _check_part(report, part)
    told: dict[Path, tuple[FpgaDesign, int]] = {}
    for report in reports:
        path = _told_by(report.path)
        if path not in told:
            told[path] = _read_design(path)
        _check_module(report, path, *told[path])
    first, *others = told
    for other in others:
        if told[other] != told[first]:
            raise ValueError(
                f"{place} has reports of several designs: "
                f"{_differences(first, told[first], other, told[other])}: give the folder of one build"
            )
    design, arena_words = told[first]
    return Build(path=first, design=design, arena_words=arena_words, reports=tuple(reports))


def part_of(place: Path) -> Part:
    """The known part that the reports in a folder are of.

    Raises
    ------
    ValueError
        As `read_reports`; or if their chip is none of a known part.
    """
    report = read_reports(place)[0]
    if known := _parts_of(report):
        return known[0]
    raise ValueError(
        f"{report.path}: {report.module} was compiled for {report.part or 'an unnamed part'}, which is "
        f"not one of {', '.join(part_names())}"
    )


def compare(build: Build) -> list[Compared]:
    """What was estimated beside what is reported: resources (of the whole kernel), clock, intervals."""
    found = []
    for report in build.reports:
        if report.module == _TOP:
            expected, given = estimate(build.design, build.arena_words), report.resources
            found = [
                Compared("DSP", expected.dsp, given.dsp, _TOP),
                Compared("LUT", expected.lut, given.lut, _TOP),
                Compared("BRAM", expected.bram36, given.bram36, _TOP),
                Compared("URAM", expected.uram, given.uram, _TOP),
            ]
    last = slowest(build.reports)
    found.append(Compared("clock, MHz", build.design.clock_hz / 1e6, last.clock_hz / 1e6, last.module))
    for name, functions in INTERVALS.items():
        for function in functions:
            interval = interval_of(build.reports, function)
            if interval is not None:
                assumed = getattr(build.design, name)
                found.append(Compared(f"interval of {function}, cycles", assumed, interval, function))
    return found


def _check_part(report: HlsReport, part: Part) -> None:
    if not report.part:
        raise ValueError(
            f"{report.path}: the element UserAssignments/Part is missing, so it is unknown whether the "
            f"report is for {part.name}"
        )
    if report.part.lower() == part.device.lower():
        return
    known = _parts_of(report)
    given = f"--part {known[0].name}" if known else "a part with that device (a .yaml file)"
    raise ValueError(
        f"{report.path}: {report.module} was compiled for {report.part}, but {part.name} is "
        f"{part.device}: give {given}, or reports of a build for {part.name}"
    )


def _parts_of(report: HlsReport) -> list[Part]:
    return [part for part in map(load_part, part_names()) if part.device.lower() == report.part.lower()]


def _told_by(report: Path) -> Path:
    # As it was given first, which is how it is shown.
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
    """A folder that was built in twice may hold what is left of another design."""
    named = _DESIGN_OF_MODULE.search(report.module)
    if named is None:
        return
    wanted = {
        "pes": design.pes,
        "mac_rows": design.mac_rows,
        "mac_cols": design.mac_cols,
        "arena_words": arena_words,
    }
    different = [
        f"{name} {number} instead of {want}"
        for (name, want), number in zip(wanted.items(), named.groups(), strict=True)
        if int(number) != want
    ]
    if different:
        raise ValueError(
            f"{report.path}: {report.module} has {', '.join(different)} as in {path}: it belongs to "
            "another build"
        )


def _differences(a: Path, first: tuple[FpgaDesign, int], b: Path, second: tuple[FpgaDesign, int]) -> str:
    names = [*_SIZES, "clock_hz"]
    mine = {name: getattr(first[0], name) for name in names} | {"arena_words": first[1]}
    other = {name: getattr(second[0], name) for name in names} | {"arena_words": second[1]}
    different = [f"{name} {mine[name]:g} and {other[name]:g}" for name in mine if mine[name] != other[name]]
    return f"{a} and {b} differ in {', '.join(different)}"


def modelled(build: Build, part: Part) -> FpgaDesign:
    """The build as the cycle model takes it: its reports' clock and intervals, its part's memory."""
    # Features come through one port, from one bank.
    return with_reports(replace(build.design, ddr_bytes_per_s=part.bank_bytes_per_s), build.reports)


def check_fifo_depth(build: Build, asked: int | None) -> None:
    """Refuse another depth of the network's queues than a build has.

    Raises
    ------
    ValueError
        If `asked` is one.
    """
    if asked is not None and asked != build.design.fifo_depth:
        raise ValueError(
            f"{build.path}: the build has fifo_depth {build.design.fifo_depth}, not {asked}: omit "
            "--fifo-depth, or give the reports of a build with that depth"
        )
