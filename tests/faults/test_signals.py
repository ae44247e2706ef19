"""Signals that stop a run, once and twice, of runs that go well, lag or hang."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from fault_case import TRAINERS, FaultSuite, differences, find_leftovers, newest_problems
from forked_runs import ForkedRun

CPU = TRAINERS[0]
SLOW = "propagate:cpu:0:0+:slow"


def begin(suite: FaultSuite, folder: Path, fault: str, until: str, *settings: str) -> ForkedRun:
    run = suite.runs.start(suite.words(CPU, *settings), folder, HYRT_FAULT=fault)
    deadline = time.monotonic() + 60
    while until not in run.output.read_text() + run.errors.read_text():
        assert suite.runs.wait(run, 0.01) is None, run.errors.read_text()
        assert time.monotonic() < deadline
    return run


def resumed(suite: FaultSuite, folder: Path) -> list[str]:
    path = folder / "runs" / "run"
    problems = newest_problems(path)
    code, run = suite.runs.call(["run", "--resume", str(path)], folder)
    assert code == 0, run.errors.read_text()
    return (
        problems
        + find_leftovers(folder, run, is_separate=False)
        + differences(path, suite.reference_run(CPU))
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_straggling_run_ends_after_its_step(
    number: signal.Signals, suite: FaultSuite, tmp_path: Path
) -> None:
    run = begin(suite, tmp_path, SLOW, "epoch 1/3")
    sent = time.monotonic()
    os.kill(run.pid, number)
    assert suite.runs.wait(run, 20) == 128 + number
    assert time.monotonic() - sent < 10
    assert "stopping after this step" in run.output.read_text()
    assert find_leftovers(tmp_path, run) == []
    assert resumed(suite, tmp_path) == []


def test_a_second_signal_leaves_a_hanging_run_at_once(suite: FaultSuite, tmp_path: Path) -> None:
    run = begin(
        suite, tmp_path, "propagate:cpu:0:middle:hang", "fault injected", "runtime.stall_timeout_s=60"
    )
    os.kill(run.pid, signal.SIGINT)
    assert suite.runs.wait(run, 0.5) is None
    sent = time.monotonic()
    os.kill(run.pid, signal.SIGINT)
    assert suite.runs.wait(run, 20) == 130
    assert time.monotonic() - sent < 5
    assert "Resume with: hyrt run --resume" in run.errors.read_text()
    assert resumed(suite, tmp_path) == []


def test_a_run_that_is_left_before_its_first_checkpoint_says_that_it_starts_again(
    suite: FaultSuite, tmp_path: Path
) -> None:
    run = begin(suite, tmp_path, "propagate:cpu:0:0:hang", "fault injected", "runtime.stall_timeout_s=60")
    os.kill(run.pid, signal.SIGINT)
    assert suite.runs.wait(run, 0.5) is None
    os.kill(run.pid, signal.SIGINT)
    assert suite.runs.wait(run, 20) == 130
    said = run.errors.read_text()
    assert "no checkpoint yet. To restart it from step 0: hyrt run --resume" in said
    assert "Resume with" not in said
    assert resumed(suite, tmp_path) == []


def test_one_signal_ends_a_hanging_run_in_ten_seconds(suite: FaultSuite, tmp_path: Path) -> None:
    run = begin(
        suite, tmp_path, "propagate:cpu:0:middle:hang", "fault injected", "runtime.stall_timeout_s=60"
    )
    sent = time.monotonic()
    os.kill(run.pid, signal.SIGTERM)
    assert suite.runs.wait(run, 30) == 143
    assert time.monotonic() - sent < 12
    assert resumed(suite, tmp_path) == []
