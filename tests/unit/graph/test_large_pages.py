"""Files of rows are read into large pages, unless they may not stay in memory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from hyrt.graph.formats import recorded_npy
from hyrt.graph.formats.recorded_npy import map_npy, write_npy

HUGE = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not HUGE.exists(), reason="needs large pages of Linux"
)


def flags(file: Path) -> list[str]:
    """What Linux says of the memory that a file is mapped to."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    start = max(at for at, line in enumerate(lines) if line.endswith(str(file)))
    return next(line.split()[1:] for line in lines[start:] if line.startswith("VmFlags:"))


@pytest.mark.parametrize("fits", [True, False])
def test_what_fits_in_memory_is_wanted_in_large_pages(
    fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(0).standard_normal((3000, 100)).astype(np.float32)
    if not fits:
        monkeypatch.setattr(
            recorded_npy, "_PARTS_OF_MEMORY", psutil.virtual_memory().total // rows.nbytes + 1
        )
    file = tmp_path / "features.npy"
    # As a large file is.
    monkeypatch.setattr(recorded_npy, "_LARGE_BYTES", 1 << 20)
    write_npy(file, rows)
    mapped = map_npy(file)
    assert ("hg" in flags(file)) == fits
    np.testing.assert_array_equal(mapped, rows)
