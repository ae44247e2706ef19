"""Reports of Vitis HLS, written by hand in their format."""

from __future__ import annotations

from pathlib import Path

import pytest
from hyrt_hls.build_report import (
    HlsReport,
    Loop,
    apply_reports,
    read_report,
    read_reports,
    unmodelled_intervals,
)
from hyrt_perfmodel.fpga_design import FpgaDesign

REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<profile>
<ReportVersion><Version>2022.2</Version></ReportVersion>
<UserAssignments>
    <unit>ns</unit>
    <Part>xcu250-figd2104-2L-e</Part>
    <TopModelName>update</TopModelName>
    <TargetClockPeriod>3.33</TargetClockPeriod>
</UserAssignments>
<PerformanceEstimates>
    <PipelineType>none</PipelineType>
    <SummaryOfTimingAnalysis>
        <unit>ns</unit>
        <EstimatedClockPeriod>2.433</EstimatedClockPeriod>
    </SummaryOfTimingAnalysis>
    <SummaryOfLoopLatency>
        <tiles>
            <TripCount>undef</TripCount>
            <Latency>undef</Latency>
            <IterationLatency>undef</IterationLatency>
            <multiply>
                <Name>multiply</Name>
                <TripCount>undef</TripCount>
                <PipelineII>2</PipelineII>
                <PipelineDepth>11</PipelineDepth>
            </multiply>
        </tiles>
    </SummaryOfLoopLatency>
</PerformanceEstimates>
<AreaEstimates>
    <Resources><BRAM_18K>7</BRAM_18K><DSP>10240</DSP><FF>20000</FF><LUT>900000</LUT><URAM>8</URAM></Resources>
    <AvailableResources><BRAM_18K>5376</BRAM_18K><DSP>12288</DSP></AvailableResources>
</AreaEstimates>
</profile>
"""


def write(folder: Path, text: str, name: str = "update_csynth.xml") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_a_report(tmp_path: Path) -> None:
    report = read_report(write(tmp_path, REPORT))
    assert (report.module, report.part) == ("update", "xcu250-figd2104-2L-e")
    assert report.loops == (
        Loop(name="tiles", pipeline_ii=None),
        Loop(name="multiply", pipeline_ii=2),
    )
    found = report.resources
    assert (found.dsp, found.lut, found.bram36, found.uram) == (10_240, 900_000, 4, 8)
    # It could run faster than it was asked to.
    assert report.clock_hz == pytest.approx(1e9 / 3.33)


def test_a_clock_that_is_missed(tmp_path: Path) -> None:
    report = read_report(write(tmp_path, REPORT.replace("2.433", "4.000")))
    assert report.clock_hz == pytest.approx(250e6)
    without = REPORT.replace("<TargetClockPeriod>3.33</TargetClockPeriod>", "")
    assert read_report(write(tmp_path, without)).clock_hz == pytest.approx(1e9 / 2.433)


def test_older_names(tmp_path: Path) -> None:
    old = REPORT.replace("<DSP>10240</DSP>", "<DSP48E>10240</DSP48E>").replace("<URAM>8</URAM>", "")
    found = read_report(write(tmp_path, old)).resources
    assert (found.dsp, found.uram) == (10_240, 0)


def test_a_module_without_loops(tmp_path: Path) -> None:
    begin, end = REPORT.index("    <SummaryOfLoopLatency>"), REPORT.index("</PerformanceEstimates>")
    assert read_report(write(tmp_path, REPORT[:begin] + REPORT[end:])).loops == ()


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "<EstimatedClockPeriod>2.433</EstimatedClockPeriod>",
            "",
            "SummaryOfTimingAnalysis/EstimatedClockPeriod is missing",
        ),
        ("2.433", "fast", "EstimatedClockPeriod must be a number of ns above 0, got 'fast'"),
        ("2.433", "nan", "EstimatedClockPeriod must be a number of ns above 0, got 'nan'"),
        ("2.433", "0", "EstimatedClockPeriod must be a number of ns above 0, got '0'"),
        ("3.33", "-1", "UserAssignments/TargetClockPeriod must be a number of ns above 0, got '-1'"),
        (
            "<PipelineII>2<",
            "<PipelineII>two<",
            "multiply/PipelineII must be an integer of at least 1, got 'two'",
        ),
        ("<PipelineII>2<", "<PipelineII>0<", "multiply/PipelineII must be an integer of at least 1, got '0'"),
        ("<LUT>900000</LUT>", "", "AreaEstimates/Resources/LUT is missing"),
        (
            "<LUT>900000<",
            "<LUT>-1<",
            "AreaEstimates/Resources/LUT must be an integer of at least 0, got '-1'",
        ),
        ("<TopModelName>update</TopModelName>", "", "UserAssignments/TopModelName is missing"),
        ("<Resources>", "<Sources>", "is not XML"),
        ("profile>", "other>", "its root element is <other>"),
    ],
)
def test_errors_name_file_and_element(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in REPORT
    with pytest.raises(ValueError, match=r"update_csynth\.xml") as error:
        read_report(write(tmp_path, REPORT.replace(old, new)))
    assert says in str(error.value)


def test_no_resources_at_all(tmp_path: Path) -> None:
    text = REPORT.replace("AreaEstimates>", "Area>")
    with pytest.raises(ValueError, match="the element AreaEstimates/Resources is missing"):
        read_report(write(tmp_path, text))


def test_folders(tmp_path: Path) -> None:
    for name in ("b_csynth.xml", "a_csynth.xml"):
        write(tmp_path / "reports" / "deeper", REPORT.replace(">update<", f">{name[0]}<"), name)
    write(tmp_path / "reports", "not one", "csynth.log")
    assert [report.module for report in read_reports(tmp_path)] == ["a", "b"]
    (tmp_path / "nothing").mkdir()
    with pytest.raises(ValueError, match=r"has no \*_csynth.xml"):
        read_reports(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"none_csynth\.xml cannot be read"):
        read_reports(tmp_path / "none_csynth.xml")


def test_a_folder_of_more_folders_than_a_build_has_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `/`: a search of the whole disk would take minutes without a word."""
    write(tmp_path / "build" / "reports", REPORT)
    for number in range(4):
        (tmp_path / "photos" / str(number)).mkdir(parents=True)
    monkeypatch.setattr("hyrt_hls.build_report._MAX_FOLDERS", 4)
    with pytest.raises(
        ValueError, match=r"has more than 4 folders: specify the folder in which v\+\+ -c was run"
    ):
        read_reports(tmp_path)
    assert len(read_reports(tmp_path / "build")) == 1


def report(folder: Path, module: str, interval: int, period: str = "2.433") -> HlsReport:
    text = REPORT.replace(">update<", f">{module}<").replace("<PipelineII>2<", f"<PipelineII>{interval}<")
    return read_report(write(folder, text.replace("2.433", period), f"{module}_csynth.xml"))


def test_reports_replace_what_is_assumed(tmp_path: Path) -> None:
    assumed = FpgaDesign(clock_hz=500e6)
    assert {"clock_hz", "update_ii", "adder_latency", "ddr_efficiency", "launch_s"} <= assumed.assumed
    reports = [
        report(tmp_path, "systolic_8_32_64_Pipeline_VITIS_LOOP_46_2", 3),
        report(tmp_path, "systolic_8_32_64_Pipeline_VITIS_LOOP_145_9", 1),
        report(tmp_path, "gather_20480_s", 1),
        report(tmp_path, "scatter_8_s", 2),
        report(tmp_path, "read_edges_8_s", 4),
        report(tmp_path, "hyrt_train", 5, period="4.0"),
    ]
    found = apply_reports(assumed, reports)
    assert (found.clock_hz, found.update_ii) == (pytest.approx(250e6), 3)
    assert (found.network_ii, found.edge_ii) == (2, 4)
    # Of the duplicator nothing is told: the network may yet be slower.
    assert found.assumed == assumed.assumed - {"clock_hz", "update_ii", "edge_ii", "adder_latency"}
    whole = apply_reports(assumed, [*reports, report(tmp_path, "duplicate_8_s", 1)])
    assert (whole.network_ii, whole.assumed) == (2, found.assumed - {"network_ii"})
    assert (found.pes, found.mac_rows, found.launch_s) == (assumed.pes, assumed.mac_rows, assumed.launch_s)
    assert unmodelled_intervals(reports) == []


def test_modules_that_tell_nothing_leave_it_assumed(tmp_path: Path) -> None:
    reports = [report(tmp_path, "systolicish", 4), report(tmp_path, "gather_20480_s", 2)]
    found = apply_reports(FpgaDesign(), reports)
    assert (found.update_ii, found.network_ii, found.edge_ii) == (1, 2, 1)
    assert {"update_ii", "network_ii", "edge_ii", "adder_latency"} <= found.assumed
    assert unmodelled_intervals(reports) == []
    (line,) = unmodelled_intervals([*reports, report(tmp_path, "feed_Design_8_32_64_32768_s", 2)])
    assert line.startswith("feed starts an iteration every 2 cycles")


def test_no_reports() -> None:
    with pytest.raises(ValueError, match="no Vitis HLS reports"):
        apply_reports(FpgaDesign(), [])
