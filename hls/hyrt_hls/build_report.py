"""Vitis HLS reports (one `<module>_csynth.xml` per kernel function), and their comparison with estimates.

`v++ -c` writes them below `_x*/reports` or `.../syn/report`, depending on its version. They identify the part
and design of a build, and contain values that otherwise must be assumed, except memory bandwidth and launch
cost. The final clock after linking is in the xclbin.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hyrt_perfmodel.fpga_design import FpgaDesign

from hyrt_hls.fpga_part import FpgaPart, load_part, part_names
from hyrt_hls.resources import Resources, estimate_resources

_NS = 1e-9
# A build has a few hundred folders. Refuse larger trees: searching a home folder or disk takes minutes.
_MAX_FOLDERS = 20_000
_GIVE_FOLDER = "specify the folder in which v++ -c was run"
INTERVALS: Mapping[str, tuple[str, ...]] = {
    "update_ii": ("systolic",),
    "network_ii": ("duplicate", "scatter", "gather"),
    "edge_ii": ("read_edges",),
}
"""Kernel functions whose loops determine each initiation interval of a design."""
# Functions outside the network and the array, for which the cycle model assumes an initiation interval of 1.
# Vitis HLS may name their loops after the functions that they call.
_EVERY_CYCLE = (
    *("read_rows", "read_features", "read_matrix", "clear"),
    *("load_panel", "read_operands", "read_left", "read_block_words", "feed", "turn", "spread"),
    *("write_results", "finish", "write_gradient"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Reported loop of a module."""

    name: str
    pipeline_ii: int | None
    """Initiation interval in cycles, or None if the loop is not pipelined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HlsReport:
    """Report on one module. `path` is the report file, and `module` the name of the function."""

    path: Path
    module: str
    part: str
    """Name of the chip; empty if the report does not name it."""
    target_period_s: float | None
    estimated_period_s: float
    """Shortest clock period that the module supports. `target_period_s` is the requested period, or None."""
    loops: tuple[Loop, ...]
    """All loops of the module, outer loops first."""
    resources: Resources
    """Resources of the module and the functions that it calls."""

    @property
    def clock_hz(self) -> float:
        """Return the clock of the module, which is never faster than requested."""
        return 1 / max(self.estimated_period_s, self.target_period_s or 0.0)


def read_report(path: Path) -> HlsReport:
    """Read a report file, `<module>_csynth.xml`.

    Raises ValueError if the file cannot be read or is not such a report, or if an element is missing or is
    not a number.
    """
    try:
        root = ElementTree.fromstring(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except ElementTree.ParseError as error:
        raise ValueError(f"{path} is not XML: {error}") from error
    if root.tag != "profile":
        raise ValueError(
            f"{path} is not the report of a module: its root element is <{root.tag}>, expected <profile>"
        )
    area = "AreaEstimates/Resources"
    if root.find(area) is None:
        raise ValueError(f"{path}: the element {area} is missing")
    timing = "PerformanceEstimates/SummaryOfTimingAnalysis/EstimatedClockPeriod"
    target = "UserAssignments/TargetClockPeriod"
    return HlsReport(
        path=path,
        module=_read_text(root, "UserAssignments/TopModelName", path),
        part=(root.findtext("UserAssignments/Part") or "").strip(),
        target_period_s=None if root.find(target) is None else _read_period_s(root, target, path),
        estimated_period_s=_read_period_s(root, timing, path),
        loops=tuple(_iter_loops(root.find("PerformanceEstimates/SummaryOfLoopLatency"), path)),
        resources=Resources(
            # Before version 2020.2, the element is named after the DSP slice.
            dsp=_read_count(
                root, f"{area}/DSP48E" if root.find(f"{area}/DSP") is None else f"{area}/DSP", path
            ),
            lut=_read_count(root, f"{area}/LUT", path),
            bram36=math.ceil(_read_count(root, f"{area}/BRAM_18K", path) / 2),
            uram=0 if root.find(f"{area}/URAM") is None else _read_count(root, f"{area}/URAM", path),
        ),
    )


def read_reports(source: Path) -> list[HlsReport]:
    """Read one report file, or all `*_csynth.xml` files below a folder in the order of their paths.

    Raises ValueError if a report is invalid, there is none, or the folder is too large for a build.
    """
    if not source.is_dir():
        return [read_report(source)]
    paths = sorted(_find_reports(source))
    if not paths:
        raise ValueError(f"{source} has no *_csynth.xml: {_GIVE_FOLDER}")
    return [read_report(path) for path in paths]


def _find_reports(place: Path) -> Iterator[Path]:
    """Iterate over the files below a folder that have the name of a report."""
    for num_visited, (folder, _, names) in enumerate(os.walk(place)):
        if num_visited >= _MAX_FOLDERS:
            raise ValueError(f"{place} has more than {_MAX_FOLDERS:,} folders: {_GIVE_FOLDER}")
        yield from (Path(folder, name) for name in names if name.endswith("_csynth.xml"))


def _iter_loops(summary: ElementTree.Element | None, path: Path) -> Iterator[Loop]:
    """Iterate over the loops below an element, including nested loops."""
    for element in [] if summary is None else summary:
        if any(
            element.find(tag) is not None
            for tag in ("TripCount", "Latency", "IterationLatency", "PipelineII")
        ):
            yield Loop(
                name=(element.findtext("Name") or element.get("name") or element.tag).strip(),
                pipeline_ii=_read_optional(element, "PipelineII", path),
            )
            yield from _iter_loops(element, path)


def _read_optional(element: ElementTree.Element, tag: str, path: Path) -> int | None:
    text = (element.findtext(tag) or "").strip()
    # If a value depends on the data, the report contains no number.
    return (
        None if text in ("", "undef", "?", "-", "n/a") else _parse_int(text, f"{path}: {element.tag}/{tag}")
    )


def _read_text(root: ElementTree.Element, element: str, path: Path) -> str:
    text = (root.findtext(element) or "").strip()
    if not text:
        raise ValueError(f"{path}: the element {element} is missing or empty")
    return text


def _read_count(root: ElementTree.Element, element: str, path: Path) -> int:
    return _parse_int(_read_text(root, element, path), f"{path}: {element}", minimum=0)


def _parse_int(text: str, location: str, minimum: int = 1) -> int:
    if not text.isdecimal() or int(text) < minimum:
        raise ValueError(f"{location} must be an integer of at least {minimum}, got {text[:40]!r}")
    return int(text)


def _read_period_s(root: ElementTree.Element, element: str, path: Path) -> float:
    text = _read_text(root, element, path)
    try:
        period_ns = float(text)
    except ValueError:
        period_ns = math.nan
    if not 0 < period_ns < math.inf:
        raise ValueError(f"{path}: {element} must be a number of ns above 0, got {text[:40]!r}")
    return period_ns * _NS


def apply_reports(design: FpgaDesign, reports: Sequence[HlsReport]) -> FpgaDesign:
    """Return the design with reported instead of assumed values. Raises ValueError if there is no report.

    The clock is that of the slowest module, and never faster than requested. `update_ii`, `network_ii` and
    `edge_ii` are the longest initiation intervals of the functions in `INTERVALS`; the goal is 1.
    `adder_latency` is a kernel parameter: the number of cycles before a sum is read again. It is confirmed if
    `gather` has an initiation interval of 1.
    """
    if not reports:
        raise ValueError("there are no Vitis HLS reports: pass at least one")
    reported = {"clock_hz"}
    intervals: dict[str, int] = {}
    for name, functions in INTERVALS.items():
        function_intervals = [initiation_interval(reports, function) for function in functions]
        if None not in function_intervals:
            reported.add(name)
        # Use the longest reported interval, even if some functions have no reported interval.
        if known_intervals := [interval for interval in function_intervals if interval is not None]:
            intervals[name] = max(known_intervals)
    if initiation_interval(reports, "gather") == 1:
        reported.add("adder_latency")
    return replace(
        design, clock_hz=slowest_module(reports).clock_hz, **intervals, assumed=design.assumed - reported
    )


def slowest_module(reports: Sequence[HlsReport]) -> HlsReport:
    """Return the report of the module that limits the clock."""
    return min(reports, key=lambda report: report.clock_hz)


def initiation_interval(reports: Sequence[HlsReport], function: str) -> int | None:
    """Return the longest initiation interval of a function's pipelined loops in cycles, or None.

    Loops and template instances for which Vitis HLS creates separate modules are included.
    """
    intervals = [
        loop.pipeline_ii
        for report in reports
        if report.module == function or report.module.startswith(f"{function}_")
        for loop in report.loops
        if loop.pipeline_ii is not None
    ]
    return max(intervals, default=None)


def unmodelled_intervals(reports: Sequence[HlsReport]) -> list[str]:
    """Return one warning per function whose reported interval the cycle model does not cover."""
    warnings = []
    for function in _EVERY_CYCLE:
        longest = initiation_interval(reports, function) or 1
        if longest > 1:
            warnings.append(
                f"{function} starts an iteration every {longest} cycles, but the model assumes every cycle: "
                f"its reads and writes may take up to {longest} times as long"
            )
    return warnings


DESIGN_FILE = "hyrt_train.json"
"""Name of the design file that the Makefile writes in the folder of the reports or above it."""

_TOP = "hyrt_train"
_SIZES = ("pes", "mac_rows", "mac_cols", "fifo_depth", "adder_latency")
# Vitis HLS includes template arguments in the name of a module: systolic<Design<8, 32, 64, 32768>> becomes
# systolic_Design_8_32_64_32768_s.
_DESIGN_OF_MODULE = re.compile(r"(?:^|_)Design_(\d+)_(\d+)_(\d+)_(\d+)(?:_|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """Vitis build and its reports."""

    path: Path
    """Path of the design file."""
    design: FpgaDesign
    """Design with the requested sizes and clock."""
    arena_words: int
    """Number of words per arena bank."""
    reports: tuple[HlsReport, ...]


@dataclass(frozen=True, slots=True)
class EstimateComparison:
    """Estimated value and the corresponding value in the reports of a build."""

    quantity: str
    """Name of the value, including its unit."""
    estimated: float
    reported: float
    module: str

    @property
    def ratio(self) -> float:
        """Return the reported value divided by the estimated value."""
        return self.reported / self.estimated if self.estimated else math.inf


def read_build(source: Path, part: FpgaPart) -> Build:
    """Read the reports of a build, which must belong to one design that was compiled for `part`.

    `source` is the folder of a build or a report in it. `hyrt_train.json` must be in the folder of the
    reports or above it. Raises ValueError if a file cannot be read, or if a report belongs to another part,
    to another design than that of `hyrt_train.json`, or to another build than the other reports.
    """
    reports = read_reports(source)
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
                f"{source} has reports of several designs "
                f"({_differences(first, designs[first], other, designs[other])}): specify the folder of one "
                "build"
            )
    design, arena_words = designs[first]
    return Build(path=first, design=design, arena_words=arena_words, reports=tuple(reports))


def identify_part(source: Path) -> FpgaPart:
    """Identify the FPGA part from the build reports in a folder.

    Raises ValueError if a report cannot be read, or its chip is not one of the built-in parts.
    """
    report = read_reports(source)[0]
    if known := _matching_parts(report):
        return known[0]
    raise ValueError(
        f"{report.path}: {report.module} was compiled for {report.part or 'an unnamed part'}, which is "
        f"not one of {', '.join(part_names())}"
    )


def compare_estimates(build: Build) -> list[EstimateComparison]:
    """Compare estimates with reports: resources of the whole kernel, clock, and initiation intervals."""
    comparisons = []
    for report in build.reports:
        if report.module == _TOP:
            expected, reported = estimate_resources(build.design, build.arena_words), report.resources
            comparisons = [
                EstimateComparison("DSP", expected.dsp, reported.dsp, _TOP),
                EstimateComparison("LUT", expected.lut, reported.lut, _TOP),
                EstimateComparison("BRAM", expected.bram36, reported.bram36, _TOP),
                EstimateComparison("URAM", expected.uram, reported.uram, _TOP),
            ]
    last = slowest_module(build.reports)
    comparisons.append(
        EstimateComparison("clock, MHz", build.design.clock_hz / 1e6, last.clock_hz / 1e6, last.module)
    )
    for name, functions in INTERVALS.items():
        for function in functions:
            interval = initiation_interval(build.reports, function)
            if interval is not None:
                assumed = getattr(build.design, name)
                comparisons.append(
                    EstimateComparison(f"interval of {function}, cycles", assumed, interval, function)
                )
    return comparisons


def _check_part(report: HlsReport, part: FpgaPart) -> None:
    if not report.part:
        raise ValueError(
            f"{report.path}: the element UserAssignments/Part is missing, so it is unknown whether the "
            f"report is for {part.name}"
        )
    if report.part.lower() == part.device.lower():
        return
    matching = _matching_parts(report)
    argument = f"--part {matching[0].name}" if matching else "--part with a .yaml file of that device"
    raise ValueError(
        f"{report.path}: {report.module} was compiled for {report.part}, but {part.name} is "
        f"{part.device}: specify {argument}, or use reports of a build for {part.name}"
    )


def _matching_parts(report: HlsReport) -> list[FpgaPart]:
    return [part for part in map(load_part, part_names()) if part.device.lower() == report.part.lower()]


def _find_design_file(report: Path) -> Path:
    # Search the parents of the given path first, so that messages show paths in the form that the user gave.
    for folder in (*report.parents, *report.absolute().parents):
        if (folder / DESIGN_FILE).is_file():
            return folder / DESIGN_FILE
    raise ValueError(
        f"the design of {report} is unknown, because there is no {DESIGN_FILE} in its folder or above: "
        f"specify the folder that hyrt's Makefile built in, or copy its {DESIGN_FILE} along with the reports"
    )


def _read_design(path: Path) -> tuple[FpgaDesign, int]:
    try:
        values: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must be a JSON object with {', '.join(_SIZES)}, arena_words and clock_mhz")
    clock_mhz, arena_words = values.get("clock_mhz"), values.get("arena_words")
    if isinstance(clock_mhz, bool) or not isinstance(clock_mhz, int | float) or not 0 < clock_mhz < math.inf:
        raise ValueError(f"{path}: clock_mhz must be a number above 0, got {clock_mhz!r}")
    if isinstance(arena_words, bool) or not isinstance(arena_words, int) or arena_words < 1:
        raise ValueError(f"{path}: arena_words must be an integer of at least 1, got {arena_words!r}")
    sizes: dict[str, Any] = {name: values.get(name) for name in _SIZES}
    try:
        return FpgaDesign(**sizes, clock_hz=clock_mhz * 1e6), arena_words
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _check_module(report: HlsReport, path: Path, design: FpgaDesign, arena_words: int) -> None:
    """Raise ValueError if a report remains from an earlier build of another design in the same folder."""
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
            f"{report.path}: {report.module} belongs to another build than {path}: it has "
            f"{', '.join(different)}"
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


def design_from_build(build: Build, part: FpgaPart) -> FpgaDesign:
    """Return the design with clock and intervals from the reports, and memory bandwidth from the part."""
    # Features are read through a single port, so from a single bank.
    return apply_reports(replace(build.design, ddr_bytes_per_s=part.bank_bytes_per_s), build.reports)


def check_fifo_depth(build: Build, requested: int | None) -> None:
    """Raise ValueError if the requested FIFO depth differs from that of the build."""
    if requested is not None and requested != build.design.fifo_depth:
        raise ValueError(
            f"the build in {build.path} has fifo_depth {build.design.fifo_depth}, not {requested}: remove "
            "--fifo-depth, or use the reports of a build with that depth"
        )
