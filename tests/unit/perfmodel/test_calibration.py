"""A calibration's file: what is written is read, and what does not belong here is said."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.measured_costs import LoadCost, SampleCost
from hyrt_perfmodel.platform import Accelerator, CoreContention, Host, Platform, TrainerRates
from hyrt_perfmodel.platform_file import (
    Calibration,
    CalibrationError,
    Machine,
    calibration_file,
    format_calibration,
    read_calibration,
    staleness_reasons,
)

MACHINE = Machine(
    node="here",
    processor="Acme 9",
    cores=4,
    versions={"hyrt": "1", "torch": "2"},
    devices={"cpu:0": "4 cores"},
)
FOUND = Calibration(
    machine=MACHINE,
    date="2026-11-21",
    seconds=31.5,
    platform=Platform(
        name="this-machine",
        source="measured 2026-11-21",
        relative_error=0.08,
        host=Host(
            memory_gb_s=20.5,
            macs_per_s=1.25e11,
            cores=4,
            forms=("rows", "aggregated", "in_place"),
            models={"gcn": TrainerRates(memory_gb_s=math.inf, macs_per_s=1e11, launch_s=0.001)},
            loading=(LoadCost(form="rows", matrix_bytes=1e6, threads=1, row_s=1e-9, gb_s=10.0),),
            sampling=(SampleCost(renumbers=True, graph_bytes=1e6, edges=6400, threads=1, edges_per_s=2e7),),
            core_efficiency=0.75,
            sharing_of={"cpu+opencl": CoreContention(step_s=4e-3, efficiency=0.7, wait_s=2e-3)},
        ),
        accelerators=(Accelerator(kind="npu", memory_gb_s=100.0, macs_per_s=1e12, link_gb_s=math.inf),),
    ),
    measured={"spread": {"memory": 0.04}},
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(format_calibration(FOUND), encoding="utf-8")
    assert read_calibration(path) == FOUND


words = st.text("0123456789-+._eExbn: ", min_size=1, max_size=8) | st.text(
    st.characters(exclude_categories=["Cs", "Cc"]), max_size=12
)
# As many digits as a calibration keeps.
figures = st.floats(1e-30, 1e30).map(lambda value: float(f"{value:.6g}"))


@settings(max_examples=50, deadline=None)
@given(words, st.dictionaries(words, words, max_size=3), figures, figures | st.just(math.inf))
@example("08", {"010": "1e3", "1:30": "2026-11-25"}, 1e-5, math.inf)
def test_any_names_and_numbers_come_back(
    name: str, named: dict[str, str], rate: float, infinite: float
) -> None:
    machine = Machine(node=name, processor=name, cores=4, versions=named, devices=named)
    rates = TrainerRates(memory_gb_s=rate, macs_per_s=rate, edges_per_s=infinite)
    host = replace(FOUND.platform.host, memory_gb_s=rate, models=dict.fromkeys([*named, name], rates))
    found = replace(
        FOUND,
        machine=machine,
        date=name,
        platform=replace(FOUND.platform, name=name, source=name, host=host),
        measured={"rate": infinite, "why": named},
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "c.yaml"
        path.write_text(format_calibration(found), encoding="utf-8")
        assert read_calibration(path) == found


def test_the_file_lies_in_the_users_cache_folder_one_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert calibration_file("box") == Path("/somewhere/hyrt/calibration-box.yaml")
    assert calibration_file("box") != calibration_file("other")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="has not been calibrated: run `hyrt calibrate`"):
        read_calibration(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        "host: {",
        "\x00",
        format_calibration(FOUND).replace("macs_per_s: 125000000000.0", "macs_per_s: -1.0"),
        format_calibration(FOUND).replace("trains: true", "trains: perhaps"),
        format_calibration(FOUND).replace("thread_load_gb_s:", "thread_lode_gb_s:"),
        format_calibration(FOUND).partition("machine:")[0],
    ],
)
def test_a_damaged_file_is_said_with_its_name_and_the_remedy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CalibrationError, match=r"c\.yaml.*: run `hyrt calibrate`"):
        read_calibration(path)


def test_a_place_that_cannot_be_read_needs_another_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CalibrationError, match=r"\(Not a directory\): set XDG_CACHE_HOME to a readable"):
        read_calibration(tmp_path / "file" / "c.yaml")


@pytest.mark.parametrize(
    ("here", "says"),
    [
        (replace(MACHINE, node="there"), "another machine"),
        (replace(MACHINE, processor="Acme 10"), "another processor"),
        (replace(MACHINE, cores=2), "4 cores, but 2 are available now"),
        (replace(MACHINE, versions={"hyrt": "1", "torch": "3"}), "torch 2, but torch 3 is installed now"),
        (replace(MACHINE, devices={"cpu:0": "4 cores", "npu:0": "new"}), "made without npu:0"),
        (replace(MACHINE, devices={}), "made with cpu:0, which is no longer available"),
        (replace(MACHINE, devices={"cpu:0": "8 cores"}), "made when cpu:0 was another device"),
    ],
)
def test_a_stale_one_says_why(here: Machine, says: str) -> None:
    assert staleness_reasons(FOUND, MACHINE) == []
    assert any(says in reason for reason in staleness_reasons(FOUND, here))
