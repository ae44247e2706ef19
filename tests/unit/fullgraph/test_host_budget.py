"""Memory within a budget, and files for the rest of it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hyrt.errors import HostMemoryError
from hyrt.fullgraph.matrix_pool import HostMemoryBudget

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="posix_fallocate is not everywhere")


def test_a_budget_allows_up_to_its_limit() -> None:
    assert HostMemoryBudget().allows(10**15, 10**15)
    assert HostMemoryBudget(100).allows(40, 60)
    assert not HostMemoryBudget(100).allows(40, 61)


def test_memory_in_a_file_holds_numbers_and_leaves_no_name(tmp_path: Path) -> None:
    memory = HostMemoryBudget(0, tmp_path).allocate_in_file(10_000)
    assert list(tmp_path.iterdir()) == []
    memory[:] = np.arange(10_000) % 251
    assert memory.sum() == (np.arange(10_000) % 251).sum()
    names = [line.split(maxsplit=5)[5] for line in _maps_of(memory)]
    assert len(names) == 1
    assert "(deleted)" in names[0]


def _maps_of(memory: np.ndarray) -> list[str]:
    """Lines of the system's table of maps in which an array begins."""
    address, found = memory.ctypes.data, []
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= address < last:
            found.append(line)
    return found


def test_a_killed_process_leaves_no_file(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from hyrt.fullgraph.matrix_pool import HostMemoryBudget\n"
        "memory = HostMemoryBudget(0, Path(sys.argv[1])).allocate_in_file(1 << 20); memory[:] = 1\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60)
    assert ended.returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_that_says_what_was_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(HostMemoryError, match=r"512 MiB beyond .*=1 GiB .*\(No space left .* free\)") as told:
        HostMemoryBudget(2**30, tmp_path).allocate_in_file(2**29)
    assert str(tmp_path) in str(told.value)
    assert ": free space" in str(told.value)
    assert list(tmp_path.iterdir()) == []


def test_more_than_any_disk_is_an_error_of_the_real_disk(tmp_path: Path) -> None:
    with pytest.raises(HostMemoryError, match="4 TiB beyond"):
        HostMemoryBudget(2**20, tmp_path).allocate_in_file(2**42)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HostMemoryError, match="No such file or directory"):
        HostMemoryBudget(2**20, tmp_path / "none").allocate_in_file(100)
