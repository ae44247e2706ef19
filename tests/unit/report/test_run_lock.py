"""Who holds a run folder, and who may take it over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hyrt.errors import HyrtError
from hyrt.report.run_process import lock_run, take_over


def killed_holder(folder: Path) -> str:
    """The name of a process that has held the folder and was killed."""
    code = (
        "import os, sys, signal, pathlib\n"
        "from hyrt.report.run_process import lock_run\n"
        "with lock_run(pathlib.Path(sys.argv[1])) as holder:\n"
        "    print(holder, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -9
    return done.stdout.strip()


def test_the_folder_of_a_killed_holder_is_taken_over_by_one(tmp_path: Path) -> None:
    holder = killed_holder(tmp_path)
    held = take_over(tmp_path, holder)
    assert held is not None
    with pytest.raises(HyrtError, match="another process is training the run"), lock_run(tmp_path):
        pass
    assert take_over(tmp_path, holder) is None
    held.close()
    # Another one that heard of the loss later finds it done.
    assert take_over(tmp_path, holder) is None
    with lock_run(tmp_path):
        pass


def test_what_its_holder_has_or_has_left_is_not_taken_over(tmp_path: Path) -> None:
    with lock_run(tmp_path) as holder:
        assert take_over(tmp_path, holder) is None
        assert (tmp_path / ".lock").read_text() == holder
    assert (tmp_path / ".lock").read_text() == ""
    assert take_over(tmp_path, holder) is None


def test_the_folder_of_another_run_or_none_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("elsewhere 7 0123456789abcdef")
    assert take_over(tmp_path, "here 7 0123456789abcdef") is None
    # It stays for who may.
    assert (tmp_path / ".lock").read_text() == "elsewhere 7 0123456789abcdef"
    assert take_over(tmp_path / "away", "here 7 0123456789abcdef") is None
    assert not (tmp_path / "away").exists()


def test_holders_are_told_apart(tmp_path: Path) -> None:
    with lock_run(tmp_path) as first:
        pass
    with lock_run(tmp_path) as second:
        pass
    assert first != second
