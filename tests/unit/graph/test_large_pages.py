"""Files of rows are read into large pages, unless they may not stay in memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from hyrt.graph.formats import npy
from hyrt.graph.formats.npy import map_npy, write_npy
from hyrt.graph.partition.write_parts import PartitionJob, write_parts

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not HUGE.exists(), reason="needs large pages of Linux"
)


@pytest.fixture
def let_go(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The files that leave the memory whole, by their inodes; all that have anything count as large."""
    found: list[int] = []
    written: set[int] = set()
    write_out = os.fdatasync

    def written_out(file: int) -> None:
        write_out(file)
        written.add(os.fstat(file).st_ino)

    def told(file: int, start: int, num_bytes: int, advice: int) -> None:
        number = os.fstat(file).st_ino
        # What is not on the disk stays.
        assert number in written
        assert (start, num_bytes, advice) == (0, 0, os.POSIX_FADV_DONTNEED)
        found.append(number)

    monkeypatch.setattr(npy, "_LARGE_BYTES", 1)
    monkeypatch.setattr(os, "fdatasync", written_out)
    monkeypatch.setattr(os, "posix_fadvise", told)
    return found


def flags(file: Path) -> list[str]:
    """What Linux says of the memory that a file is mapped to."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    start = max(at for at, line in enumerate(lines) if line.endswith(str(file)))
    return next(line.split()[1:] for line in lines[start:] if line.startswith("VmFlags:"))


@pytest.mark.parametrize("bound", ["nothing", "machine", "control group"])
def test_what_fits_in_memory_is_wanted_in_large_pages(
    bound: str, let_go: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).standard_normal((3000, 100)).astype(np.float32)
    limit: int | None = None
    if bound == "machine":
        monkeypatch.setattr(npy, "_PARTS_OF_MEMORY", psutil.virtual_memory().total // rows.nbytes + 1)
    elif bound == "control group":
        limit = 8 * rows.nbytes
    monkeypatch.setattr(npy, "cgroup_limits", lambda *paths: {"cpus": None, "memory_bytes": limit})
    file = tmp_path / "features.npy"
    write_npy(file, rows)
    mapped = map_npy(file)
    fits = bound == "nothing"
    assert ("hg" in flags(file)) == fits
    assert let_go == ([file.stat().st_ino] if fits else [])
    np.testing.assert_array_equal(mapped, rows)


def test_the_rows_of_all_parts_leave_the_memory_when_they_are_written(
    let_go: list[int], tmp_path: Path
) -> None:
    folder = tmp_path / "parts"
    write_parts(PartitionJob("synthetic:tiny", folder, num_parts=3, method="random"))
    files = {file.stat().st_ino for file in folder.rglob("*.npy")}
    assert len(files) > 3
    assert files <= set(let_go)


def test_a_small_file_stays(let_go: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npy, "_LARGE_BYTES", 4096)
    write_npy(tmp_path / "small.npy", np.zeros(100, np.float32))
    assert let_go == []
