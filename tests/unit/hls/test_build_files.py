"""The folder that a trainer is built in."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import hyrt_hls
import pytest
from hyrt_hls.build_files import build_warnings, link_config, write_build_files
from hyrt_hls.fpga_part import load_part
from hyrt_hls.resources import estimate_resources
from hyrt_perfmodel.fpga_design import FpgaDesign

HOME = Path(hyrt_hls.__file__).parent
SMALL = FpgaDesign(pes=4, mac_rows=8, mac_cols=16, fifo_depth=16, adder_latency=9, clock_hz=250e6)


def test_everything_is_there(tmp_path: Path) -> None:
    folder, part = tmp_path / "new" / "u280", load_part("u280")
    assert write_build_files(folder, part, SMALL, 8192, units=2) == estimate_resources(SMALL, 8192).scaled(2)
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    sources = {
        path for path in (*(HOME / "kernels").iterdir(), *(HOME / "include").iterdir()) if path.is_file()
    }
    assert written == {str(path.relative_to(HOME)) for path in sources} | {
        "Makefile",
        "design.mk",
        "configs/u280.cfg",
    }
    assert {"kernels/trainer.cpp", "include/hls_stream.h"} <= written
    for path in sources:
        assert (folder / path.relative_to(HOME)).read_bytes() == path.read_bytes()
    assert (folder / "configs" / "u280.cfg").read_text() == link_config(part, SMALL, units=2)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_takes_the_design(tmp_path: Path) -> None:
    folder, part = tmp_path / "u280", load_part("u280")
    write_build_files(folder, part, SMALL, 8192)
    done = subprocess.run(
        ["make", "-n", "-C", str(folder)], capture_output=True, text=True, timeout=60, check=True
    )
    for word in (
        "-DHYRT_PES=4 ",
        "-DHYRT_MAC_ROWS=8 ",
        "-DHYRT_MAC_COLS=16 ",
        "-DHYRT_ARENA_WORDS=8192 ",
        "-DHYRT_FIFO_DEPTH=16 ",
        "-DHYRT_ADDER_LATENCY=9 ",
        "--kernel_frequency 250 ",
        f"--platform {part.platform} ",
        "--config configs/u280.cfg ",
    ):
        assert word in done.stdout


def test_a_folder_with_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    for folder in (tmp_path, tmp_path / "mine"):
        with pytest.raises(ValueError, match="not empty: choose a new or empty folder"):
            write_build_files(folder, load_part("u250"), SMALL, 8192)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("design", "words", "units", "says"),
    [
        (FpgaDesign(mac_rows=64), 32_768, 1, "does not fit u250, because it needs dsp 21,376 of 12,288"),
        (FpgaDesign(), 32_768, 2, "dsp 22,272 of 12,288"),
        (FpgaDesign(), 200_000, 1, "uram"),
        (FpgaDesign(), 10, 1, "arena: one target needs 32 words of sums and 16 of rows in each of 8 banks"),
        (FpgaDesign(mac_cols=8), 32_768, 1, "mac_cols must be a multiple of 16"),
        (FpgaDesign(), 32_768, 0, "compute units must be at least 1, got 0"),
    ],
)
def test_what_does_not_fit_writes_nothing(
    tmp_path: Path, design: FpgaDesign, words: int, units: int, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        write_build_files(tmp_path / "new", load_part("u250"), design, words, units=units)
    assert not (tmp_path / "new").exists()


def test_what_may_go_wrong_is_said() -> None:
    part = load_part("u250")
    # The paper's design, and the parts' own.
    assert build_warnings(part, FpgaDesign()) == []
    for name in ("u200", "u280", "u50"):
        own = load_part(name)
        assert (
            build_warnings(own, FpgaDesign(pes=own.pes, mac_rows=own.mac_rows, mac_cols=own.mac_cols)) == []
        )
    (clock,) = build_warnings(part, FpgaDesign(clock_hz=301e6))
    assert clock.startswith("the design has a clock of 301 MHz, but the platform of u250 only 300 MHz")
    assert build_warnings(replace(part, clock_mhz=None), FpgaDesign(clock_hz=5e9)) == []
    (wide,) = build_warnings(part, FpgaDesign(pes=16))
    assert wide.startswith("streams have 8,192 bits, but Vitis HLS is reported to reject more than 4,096")
    assert len(build_warnings(part, FpgaDesign(pes=16, clock_hz=5e9))) == 2
