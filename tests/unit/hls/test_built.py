"""Of which part and design reports are; the reports are written by hand in Vitis HLS's format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hyrt_hls.build_report import Build, check_fifo_depth, compare_estimates, design_from_build, read_build
from hyrt_hls.fpga_part import load_part
from hyrt_hls.resources import estimate_resources

TOLD = {
    "pes": 8,
    "mac_rows": 32,
    "mac_cols": 64,
    "arena_words": 32768,
    "fifo_depth": 16,
    "adder_latency": 9,
    "clock_mhz": 250,
}
U250 = load_part("u250")


def write_report(
    folder: Path,
    module: str,
    *,
    part: str = U250.device,
    interval: int = 1,
    period: float = 3.0,
    dsp: int = 1,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{module}_csynth.xml"
    path.write_text(
        f"<profile><UserAssignments><Part>{part}</Part><TopModelName>{module}</TopModelName>"
        "<TargetClockPeriod>4.0</TargetClockPeriod></UserAssignments>"
        "<PerformanceEstimates><SummaryOfTimingAnalysis>"
        f"<EstimatedClockPeriod>{period}</EstimatedClockPeriod></SummaryOfTimingAnalysis>"
        f"<SummaryOfLoopLatency><L><PipelineII>{interval}</PipelineII></L></SummaryOfLoopLatency>"
        "</PerformanceEstimates><AreaEstimates>"
        f"<Resources><BRAM_18K>101</BRAM_18K><DSP>{dsp}</DSP><LUT>1400000</LUT><URAM>600</URAM></Resources>"
        "</AreaEstimates></profile>"
    )
    return path


def write_told(folder: Path, **changes: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hyrt_train.json").write_text(json.dumps(TOLD | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_told(tmp_path)
    deep = tmp_path / "temporary" / "syn" / "report"
    write_report(deep, "hyrt_train", dsp=12_000)
    write_report(deep, "systolic_Design_8_32_64_32768_s", interval=2, period=5.0)
    return tmp_path


def test_a_build(folder: Path) -> None:
    build = read_build(folder, U250)
    design = build.design
    assert (design.pes, design.mac_rows, design.mac_cols, build.arena_words) == (8, 32, 64, 32768)
    assert (design.fifo_depth, design.adder_latency, design.clock_hz) == (16, 9, 250e6)
    # As far as anyone knows before reports are read.
    assert "clock_hz" in design.assumed
    assert read_build(folder / "temporary" / "syn", U250) == build


def test_what_is_reported_stands_beside_what_was_estimated(folder: Path) -> None:
    build = read_build(folder, U250)
    expected = estimate_resources(build.design, 32768)
    found = {each.quantity: each for each in compare_estimates(build)}
    dsp, bram = found["DSP"], found["BRAM"]
    assert (dsp.estimated, dsp.reported, dsp.ratio) == (expected.dsp, 12_000, 12_000 / expected.dsp)
    # Reports count halves of 18 Kb.
    assert (bram.estimated, bram.reported) == (expected.bram36, 51)
    assert (found["LUT"].reported, found["URAM"].reported) == (1_400_000, 600)
    clock = found["clock, MHz"]
    assert clock.estimated == 250
    assert clock.reported == pytest.approx(200)
    assert clock.module.startswith("systolic")
    assert found["interval of systolic, cycles"].ratio == 2
    # Nothing is said of what no report tells.
    assert not any("gather" in what for what in found)


def test_without_the_whole_kernels_report(folder: Path) -> None:
    (folder / "temporary" / "syn" / "report" / "hyrt_train_csynth.xml").unlink()
    assert [each.quantity for each in compare_estimates(read_build(folder, U250))] == [
        "clock, MHz",
        "interval of systolic, cycles",
    ]


def test_a_build_in_the_cycle_model(folder: Path) -> None:
    build = read_build(folder, U250)
    found = design_from_build(build, U250)
    assert found.clock_hz == pytest.approx(200e6)
    assert found.update_ii == 2
    assert found.assumed == build.design.assumed - {"clock_hz", "update_ii"}
    assert found.ddr_bytes_per_s == U250.bank_bytes_per_s
    assert found.fifo_depth == 16


def test_another_part(folder: Path) -> None:
    with pytest.raises(ValueError, match="u200 is xcu200-fsgd2104-2-e: specify --part u250, or use reports"):
        read_build(folder, load_part("u200"))
    # Vivado's names have no case of their own.
    read_build(folder, replace(U250, device=U250.device.upper()))
    write_report(folder, "gather_20480_s", part="xcvu9p-x")
    with pytest.raises(
        ValueError, match=r"gather_20480_s_csynth\.xml: gather_20480_s was compiled for xcvu9p-x"
    ):
        read_build(folder, U250)
    write_report(folder, "gather_20480_s", part="")
    with pytest.raises(ValueError, match="UserAssignments/Part is missing"):
        read_build(folder, U250)


def test_a_module_of_another_design(folder: Path) -> None:
    """Left in the folder by an earlier build."""
    write_report(folder, "feed_Design_8_16_64_65536_s")
    with pytest.raises(
        ValueError,
        match=r"belongs to another build than .*json: it has mac_rows 16 instead of 32, arena_words 65536 "
        r"instead of 32768",
    ):
        read_build(folder, U250)


def test_several_builds(folder: Path) -> None:
    write_told(folder / "other")
    write_report(folder / "other", "hyrt_train")
    assert len(read_build(folder, U250).reports) == 3
    write_told(folder / "other", pes=4, clock_mhz=300)
    with pytest.raises(
        ValueError,
        match=r"several designs \(.* differ in .*pes \d and \d, .*clock_hz .*\): specify the folder of one",
    ):
        read_build(folder, U250)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a JSON object with pes"),
        (json.dumps({**TOLD, "pes": 0}), "pes must be an integer of at least 1, got 0"),
        (json.dumps({**TOLD, "pes": 65}), "pes must be at most 64, got 65"),
        (json.dumps({**TOLD, "fifo_depth": None}), "fifo_depth must be an integer of at least 1, got None"),
        (json.dumps({**TOLD, "clock_mhz": "fast"}), "clock_mhz must be a number above 0, got 'fast'"),
        (json.dumps({**TOLD, "clock_mhz": float("inf")}), "clock_mhz must be a number above 0, got inf"),
    ],
)
def test_what_tells_the_design_is_checked(folder: Path, content: str, says: str) -> None:
    (folder / "hyrt_train.json").write_text(content)
    with pytest.raises(ValueError, match=r"hyrt_train\.json") as error:
        read_build(folder, U250)
    assert says in str(error.value)


def test_nothing_tells_the_design(folder: Path) -> None:
    (folder / "hyrt_train.json").unlink()
    with pytest.raises(ValueError, match=r"there is no hyrt_train\.json in its folder or above"):
        read_build(folder, U250)


def test_another_depth_is_refused(folder: Path) -> None:
    build: Build = read_build(folder, U250)
    check_fifo_depth(build, None)
    check_fifo_depth(build, 16)
    with pytest.raises(ValueError, match="has fifo_depth 16, not 32: remove"):
        check_fifo_depth(build, 32)
