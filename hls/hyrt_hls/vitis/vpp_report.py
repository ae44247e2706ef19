"""What Vitis HLS reports of a build, in the place of what is assumed.

`v++ -c` leaves one `<module>_csynth.xml` a function of the kernel (under `_x*/reports` or `.../syn/report`,
by version); they are all read. What they do not have (bandwidth of the memory, the cost of a launch) stays
assumed; what the linker made of the clock has the xclbin.
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
# A build has some hundreds; in a home folder or a whole disk, a search would take minutes.
_MOST_FOLDERS = 20_000
_GIVE_FOLDER = "give the folder in which v++ -c was run"
INTERVALS: Mapping[str, tuple[str, ...]] = {
    "update_ii": ("systolic",),
    "network_ii": ("duplicate", "scatter", "gather"),
    "edge_ii": ("read_edges",),
}
"""Fields of a design, and the kernels' functions whose loops they are the intervals of."""
# Processes beside the network and the array, which the cycle model takes to begin an iteration every cycle;
# Vitis HLS may name their loops after the functions that they call.
_EVERY_CYCLE = (
    *("read_rows", "read_features", "read_matrix", "clear"),
    *("load_panel", "read_operands", "read_left", "read_block_words", "feed", "turn", "spread"),
    *("write_results", "finish", "write_gradient"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A loop of a module."""

    name: str
    """The loop's label."""
    pipeline_ii: int | None
    """Cycles between the beginnings of two iterations; None where it is not pipelined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HlsReport:
    """One module's report."""

    path: Path
    module: str
    part: str
    """`path`, `module` and `part`: the file, the function, and the chip it was compiled for ("" where it is
    not told)."""
    target_period_s: float | None
    estimated_period_s: float
    """`target_period_s` and `estimated_period_s`: periods of the clock: what was asked for (None where it is
    not told) and what the module can do."""
    loops: tuple[Loop, ...]
    """All loops, the outer ones first."""
    resources: Resources
    """What the module takes, with what it calls."""

    @property
    def clock_hz(self) -> float:
        """What the module runs at: no faster than asked for."""
        return 1 / max(self.estimated_period_s, self.target_period_s or 0.0)


def read_report(path: Path) -> HlsReport:
    """Read a `<module>_csynth.xml`.

    Raises
    ------
    ValueError
        Naming file and element, if it cannot be read, is not such a report, or an element is missing or no
        number.
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
        module=_text(root, "UserAssignments/TopModelName", path),
        part=(root.findtext("UserAssignments/Part") or "").strip(),
        target_period_s=None if root.find(target) is None else _period_s(root, target, path),
        estimated_period_s=_period_s(root, timing, path),
        loops=tuple(_loops(root.find("PerformanceEstimates/SummaryOfLoopLatency"), path)),
        resources=Resources(
            # Before 2020.2 it was called after the slice; the others have kept their names.
            dsp=_count(root, f"{area}/DSP48E" if root.find(f"{area}/DSP") is None else f"{area}/DSP", path),
            lut=_count(root, f"{area}/LUT", path),
            bram36=math.ceil(_count(root, f"{area}/BRAM_18K", path) / 2),
            uram=0 if root.find(f"{area}/URAM") is None else _count(root, f"{area}/URAM", path),
        ),
    )


def read_reports(place: Path) -> list[HlsReport]:
    """The report in a file, or all `*_csynth.xml` in a folder and below, by path.

    Raises
    ------
    ValueError
        As `read_report`; or if there is none, or more folders than any build has.
    """
    if not place.is_dir():
        return [read_report(place)]
    paths = sorted(_reports_below(place))
    if not paths:
        raise ValueError(f"{place} has no *_csynth.xml: {_GIVE_FOLDER}")
    return [read_report(path) for path in paths]


def _reports_below(place: Path) -> Iterator[Path]:
    """Files named like a report, in a folder and below."""
    for looked_at, (folder, _, names) in enumerate(os.walk(place)):
        if looked_at >= _MOST_FOLDERS:
            raise ValueError(f"{place} has more than {_MOST_FOLDERS:,} folders: {_GIVE_FOLDER}")
        yield from (Path(folder, name) for name in names if name.endswith("_csynth.xml"))


def _loops(summary: ElementTree.Element | None, path: Path) -> Iterator[Loop]:
    """Loops below an element; a loop inside another stands inside its element."""
    for element in [] if summary is None else summary:
        if any(
            element.find(tag) is not None
            for tag in ("TripCount", "Latency", "IterationLatency", "PipelineII")
        ):
            yield Loop(
                name=(element.findtext("Name") or element.get("name") or element.tag).strip(),
                pipeline_ii=_optional(element, "PipelineII", path),
            )
            yield from _loops(element, path)


def _optional(element: ElementTree.Element, tag: str, path: Path) -> int | None:
    text = (element.findtext(tag) or "").strip()
    # What depends on data has no number.
    return None if text in ("", "undef", "?", "-", "n/a") else _whole(text, f"{path}: {element.tag}/{tag}")


def _text(root: ElementTree.Element, place: str, path: Path) -> str:
    found = (root.findtext(place) or "").strip()
    if not found:
        raise ValueError(f"{path}: the element {place} is missing or empty")
    return found


def _count(root: ElementTree.Element, place: str, path: Path) -> int:
    return _whole(_text(root, place, path), f"{path}: {place}", least=0)


def _whole(text: str, where: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"{where} is {text[:40]!r}, not a whole number of at least {least}")
    return int(text)


def _period_s(root: ElementTree.Element, place: str, path: Path) -> float:
    text = _text(root, place, path)
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise ValueError(f"{path}: {place} is {text[:40]!r}, not a number of ns above 0")
    return found * _NS


def with_reports(design: FpgaDesign, reports: Sequence[HlsReport]) -> FpgaDesign:
    """The design with what reports tell in the place of what is assumed.

    The clock is that of the slowest module, and no faster than asked for. `update_ii`, `network_ii` and
    `edge_ii` are the longest intervals of the loops of the functions behind them (`INTERVALS`), which are
    meant to begin an iteration every cycle. `adder_latency` is of the kernel's own making (it waits so many
    cycles before it reads a sum again): a `gather` that begins a message every cycle confirms it.

    Raises
    ------
    ValueError
        If there is no report.
    """
    if not reports:
        raise ValueError("no report of Vitis HLS: give at least one")
    told = {"clock_hz"}
    intervals: dict[str, int] = {}
    for name, functions in INTERVALS.items():
        found = [interval_of(reports, function) for function in functions]
        if None not in found:
            told.add(name)
        # One that is slow is known, whatever the others are.
        if known := [interval for interval in found if interval is not None]:
            intervals[name] = max(known)
    if interval_of(reports, "gather") == 1:
        told.add("adder_latency")
    return replace(design, clock_hz=slowest(reports).clock_hz, **intervals, assumed=design.assumed - told)


def slowest(reports: Sequence[HlsReport]) -> HlsReport:
    """The module that the clock has to wait for."""
    return min(reports, key=lambda report: report.clock_hz)


def interval_of(reports: Sequence[HlsReport], function: str) -> int | None:
    """The longest interval of a function's pipelined loops in cycles; None where no report tells of one.

    Its module is looked at, and those that Vitis HLS makes of its loops and of each use of the template.
    """
    found = [
        loop.pipeline_ii
        for report in reports
        if report.module == function or report.module.startswith(f"{function}_")
        for loop in report.loops
        if loop.pipeline_ii is not None
    ]
    return max(found, default=None)


def beyond_the_model(reports: Sequence[HlsReport]) -> list[str]:
    """What reports tell that the cycle model has no term for, one sentence each."""
    found = []
    for function in _EVERY_CYCLE:
        longest = interval_of(reports, function) or 1
        if longest > 1:
            found.append(
                f"{function} begins an iteration every {longest} cycles: the model assumes 1, so its "
                f"reads and writes may take up to {longest} times as long"
            )
    return found
