"""Folders that cannot be written, in ways that also stop root: a file in their place, a full disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hyrt.doctor.finding import DoctorFinding
from hyrt.doctor.host_checks import check_disk, find_write_problem, first_existing_ancestor
from hyrt.doctor.software_checks import evaluate_calibration
from hyrt.runtime.isolated_worker import Answer


def test_writing_leaves_nothing(tmp_path: Path) -> None:
    assert find_write_problem(tmp_path / "not" / "there") == ""
    assert list(tmp_path.iterdir()) == []
    assert first_existing_ancestor(tmp_path / "not" / "there") == tmp_path


def test_a_file_in_the_way(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert find_write_problem(file / "below") == f"{file} is not a folder"
    (found,) = check_disk(file / "runs", None)
    assert found.state == "broken"
    assert "--output" in found.remedy
    (kept,) = evaluate_calibration(Answer(), file / "hyrt")
    assert kept.state == "warning"
    assert "XDG_CACHE_HOME" in kept.remedy


def test_a_dangling_link_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert "is not a folder" in find_write_problem(tmp_path / "link" / "runs")


def test_a_folder_of_the_system_cannot_be_written() -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("no /proc")
    assert find_write_problem(Path("/proc/self")).startswith("/proc/self cannot be written: ")


def test_disk_against_what_a_run_keeps(tmp_path: Path) -> None:
    state = os.statvfs(tmp_path)
    free = state.f_bavail * state.f_frsize

    def found(checkpoint: int, keep: int) -> DoctorFinding:
        need = {"checkpoints_bytes": keep * checkpoint, "total_bytes": keep * checkpoint}
        (one,) = check_disk(tmp_path / "runs", {**need, "least_bytes": checkpoint})
        return one

    small = found(2**18, 4)
    assert small.state == "ok"
    assert small.found.endswith("a run writes about 1 MiB (checkpoints 1 MiB)")
    assert small.figures["free_bytes"] == pytest.approx(free, rel=0.1)
    many = found(free // 2, 4)
    assert many.state == "warning"
    assert "checkpoint.keep" in many.remedy
    large = found(2 * free, 4)
    assert large.state == "broken"
    assert "--output" in large.remedy


def test_rates_that_were_kept(tmp_path: Path) -> None:
    def judged(**said: Any) -> tuple[str, str]:
        (found,) = evaluate_calibration(Answer((said,)), tmp_path)
        return found.state, found.found.removeprefix(f"{tmp_path}: ")

    whole = judged(calibrated=True, why="", devices=["cpu:0"])
    assert whole == ("ok", "this machine is calibrated")
    state, words = judged(calibrated=False, why="", devices=["cpu:0", "opencl:0"])
    assert state == "note"
    assert words.startswith(
        "the rates of cpu:0, opencl:0 were measured, but this machine is not calibrated: "
    )
    assert judged(calibrated=False, why="the calibration was made elsewhere", devices=["cpu:0"]) == (
        "note",
        "the calibration was made elsewhere",
    )
    assert judged(calibrated=False, why="", devices=[])[1].startswith("not calibrated: run `hyrt calibrate` ")
