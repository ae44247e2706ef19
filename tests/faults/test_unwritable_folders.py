"""Folders that cannot be written, and compiled kernels that are damaged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_case import TRAINERS, FaultSuite, differences
from forked_runs import NO_OVERRIDE

import hyrt

CPU = TRAINERS[0]


@pytest.fixture
def failed_run(suite: FaultSuite, tmp_path: Path) -> Iterator[Path]:
    """A run that can go on, in a folder whose modes are put back."""
    run = suite.runs.start(suite.words(CPU), tmp_path, HYRT_FAULT="load:cpu:0:middle:raise")
    assert suite.runs.wait(run, 60) == 1
    path = tmp_path / "runs" / "run"
    yield path
    for folder in (path, path / "checkpoints"):
        folder.chmod(0o755)


@pytest.mark.parametrize("name", [".", "checkpoints"])
def test_a_read_only_folder(name: str, failed_run: Path, suite: FaultSuite, tmp_path: Path) -> None:
    (failed_run / name).chmod(0o555)
    if name == ".":
        (failed_run / ".lock").unlink()
    before = sorted(path.name for path in (failed_run / "checkpoints").iterdir())
    words = ["run", "--resume", str(failed_run)]
    run = suite.runs.start(words, tmp_path, **{NO_OVERRIDE: "1"})
    code, errors = suite.runs.wait(run, 60), run.errors.read_text()
    assert code == 1, errors
    assert "Traceback" not in errors
    assert str(failed_run) in errors
    assert "Permission denied" in errors
    assert "writable" in errors
    assert sorted(path.name for path in (failed_run / "checkpoints").iterdir()) == before
    (failed_run / name).chmod(0o755)
    assert suite.runs.call(words, tmp_path)[0] == 0
    assert differences(failed_run, suite.reference_run(CPU)) == []


def damaged_copy(tmp_path: Path) -> Path:
    """The package with its compiled kernels: every file emptied, overwritten or cut in half, in turns."""
    package = tmp_path / "hyrt"
    shutil.copytree(Path(hyrt.__file__).parent, package)
    files = sorted(package.rglob("*.nb[ic]"))
    if not files:
        pytest.skip("nothing has been compiled beside the sources")
    for number, file in enumerate(files):
        content = file.read_bytes()
        file.write_bytes((b"", b"\xcd" * 900, content[: len(content) // 2])[number % 3])
    return package


def test_a_damaged_cache_of_kernels_is_compiled_again(suite: FaultSuite, tmp_path: Path) -> None:
    package = damaged_copy(tmp_path)
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    done = subprocess.run(
        [sys.executable, "-m", "hyrt", *suite.words(CPU), "runtime.stall_timeout_s=150"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "compiled kernels in" in line]
    assert line.startswith(f"warning: compiled kernels in {package}")
    assert line.endswith(" are damaged and will be recompiled")
    assert "Traceback" not in done.stderr
