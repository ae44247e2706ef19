"""Reports of Vitis HLS, which replace assumed values of a design.

`v++ -c` writes one `<module>_csynth.xml` per function of the kernel (below `_x*/reports` or `.../syn/report`,
depending on the version); all are read. Values that they lack (memory bandwidth, launch cost) remain assumed.
The final clock after linking is in the xclbin.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from hyrt_perfmodel.cycles.design import FpgaDesign

from hyrt_hls.parts.resources import Resources

_NS = 1e-9
# A build has some hundred folders; searching a home folder or a whole disk would take minutes.
_MAX_FOLDERS = 20_000
_GIVE_FOLDER = "give the folder in which v++ -c was run"
INTERVALS: Mapping[str, tuple[str, ...]] = {
    "update_ii": ("systolic",),
    "network_ii": ("duplicate", "scatter", "gather"),
    "edge_ii": ("read_edges",),
}
"""Initiation intervals of a design, and the kernel functions with their loops."""
# Functions besides network and array; the cycle model assumes an initiation interval of 1. Vitis HLS may name
# loops after the called functions.
_EVERY_CYCLE = (
    *("read_rows", "read_features", "read_matrix", "clear"),
    *("load_panel", "read_operands", "read_left", "read_block_words", "feed", "turn", "spread"),
    *("write_results", "finish", "write_gradient"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop of a module."""

    name: str
    """Label of the loop."""
    pipeline_ii: int | None
    """Initiation interval in cycles; None if the loop is not pipelined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HlsReport:
    """Report of one module."""

    path: Path
    module: str
    part: str
    """`path`, `module` and `part`: the file, the function, and the chip ("" if missing)."""
    target_period_s: float | None
    estimated_period_s: float
    """`target_period_s` and `estimated_period_s`: requested clock period (None if missing), and the shortest
    period that the module supports.
    """
    loops: tuple[Loop, ...]
    """All loops, outer loops first."""
    resources: Resources
    """Resources of the module and its callees."""

    @property
    def clock_hz(self) -> float:
        """Return the clock of the module: never faster than requested."""
        return 1 / max(self.estimated_period_s, self.target_period_s or 0.0)


def read_report(path: Path) -> HlsReport:
    """Read a `<module>_csynth.xml`.

    Raises
    ------
    ValueError
        If the file cannot be read or is not such a report, or an element is missing or not a number. The
        message has the file and the element.
    """
    try:
        root = ElementTree.fromstring(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except ElementTree.ParseError as error:
        raise ValueError(f"{path} is not XML: {error}") from error
    if root.tag != "profile":
        raise ValueError(
            f"{path}: begins with <{root.tag}>, but the report of a module begins with <profile>"
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
            # Named after the slice before version 2020.2.
            dsp=_read_count(
                root, f"{area}/DSP48E" if root.find(f"{area}/DSP") is None else f"{area}/DSP", path
            ),
            lut=_read_count(root, f"{area}/LUT", path),
            bram36=math.ceil(_read_count(root, f"{area}/BRAM_18K", path) / 2),
            uram=0 if root.find(f"{area}/URAM") is None else _read_count(root, f"{area}/URAM", path),
        ),
    )


def read_reports(place: Path) -> list[HlsReport]:
    """Read the report in a file, or all `*_csynth.xml` below a folder, sorted by path.

    Raises
    ------
    ValueError
        If a report is invalid, there is none, or the folder has more subfolders than any build.
    """
    if not place.is_dir():
        return [read_report(place)]
    paths = sorted(_find_reports(place))
    if not paths:
        raise ValueError(f"{place} has no *_csynth.xml: {_GIVE_FOLDER}")
    return [read_report(path) for path in paths]


def _find_reports(place: Path) -> Iterator[Path]:
    """Iterate over the files below a folder that are named like a report."""
    for num_visited, (folder, _, names) in enumerate(os.walk(place)):
        if num_visited >= _MAX_FOLDERS:
            raise ValueError(f"{place} has more than {_MAX_FOLDERS:,} folders: {_GIVE_FOLDER}")
        yield from (Path(folder, name) for name in names if name.endswith("_csynth.xml"))


def _iter_loops(summary: ElementTree.Element | None, path: Path) -> Iterator[Loop]:
    """Iterate over the loops below an element; nested loops are nested elements."""
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
    # Data-dependent values have no number.
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
        raise ValueError(f"{location} is {text[:40]!r}, not a whole number of at least {minimum}")
    return int(text)


def _read_period_s(root: ElementTree.Element, element: str, path: Path) -> float:
    text = _read_text(root, element, path)
    try:
        period_ns = float(text)
    except ValueError:
        period_ns = math.nan
    if not 0 < period_ns < math.inf:
        raise ValueError(f"{path}: {element} is {text[:40]!r}, not a number of ns above 0")
    return period_ns * _NS


def with_reports(design: FpgaDesign, reports: Sequence[HlsReport]) -> FpgaDesign:
    """Replace assumed values of a design by reported values.

    The clock is that of the slowest module, and never faster than requested. `update_ii`, `network_ii` and
    `edge_ii` are the longest initiation intervals in the functions of `INTERVALS`; their target is 1.
    `adder_latency` is a parameter of the kernel (it waits for that many cycles before it reads a sum again);
    a `gather` with an initiation interval of 1 confirms it.

    Raises
    ------
    ValueError
        If there is no report.
    """
    if not reports:
        raise ValueError("no report of Vitis HLS: give at least one")
    reported = {"clock_hz"}
    intervals: dict[str, int] = {}
    for name, functions in INTERVALS.items():
        function_intervals = [interval_of(reports, function) for function in functions]
        if None not in function_intervals:
            reported.add(name)
        # The longest reported interval applies even if other functions lack one.
        if known_intervals := [interval for interval in function_intervals if interval is not None]:
            intervals[name] = max(known_intervals)
    if interval_of(reports, "gather") == 1:
        reported.add("adder_latency")
    return replace(design, clock_hz=slowest(reports).clock_hz, **intervals, assumed=design.assumed - reported)


def slowest(reports: Sequence[HlsReport]) -> HlsReport:
    """Return the module that limits the clock."""
    return min(reports, key=lambda report: report.clock_hz)


def interval_of(reports: Sequence[HlsReport], function: str) -> int | None:
    """Return the longest initiation interval of a function's pipelined loops in cycles; None if unknown.

    Includes the modules that Vitis HLS creates for the function's loops and for each template instance.
    """
    intervals = [
        loop.pipeline_ii
        for report in reports
        if report.module == function or report.module.startswith(f"{function}_")
        for loop in report.loops
        if loop.pipeline_ii is not None
    ]
    return max(intervals, default=None)


def beyond_the_model(reports: Sequence[HlsReport]) -> list[str]:
    """Return warnings about reported intervals that the cycle model does not cover, one sentence each."""
    warnings = []
    for function in _EVERY_CYCLE:
        longest = interval_of(reports, function) or 1
        if longest > 1:
            warnings.append(
                f"{function} begins an iteration every {longest} cycles: the model assumes 1, so its "
                f"reads and writes may take up to {longest} times as long"
            )
    return warnings
