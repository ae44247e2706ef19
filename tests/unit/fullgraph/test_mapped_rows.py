"""Matrices in files: their memory is given back, and never what is in memory alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import run_here

import hyrt
from hyrt.fullgraph.input_rows import InputRows, MmapRows, find_mmap
from hyrt.nn.layer import InPlaceFeatures
from hyrt.runtime.workers import Workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell of pages")
ROWS, COLUMNS = 4000, 70


@pytest.fixture
def file(tmp_path: Path) -> Path:
    values = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    np.save(tmp_path / "x.npy", values)
    return tmp_path / "x.npy"


def resident_kib(values: np.ndarray[Any, Any]) -> int:
    """Of the map that an array lies in, as the system tells it."""
    address, inside = values.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, _, rest = line.partition("-")
        if rest and " " in rest and all(c in "0123456789abcdef" for c in first):
            inside = int(first, 16) <= address < int(rest.split()[0], 16)
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1])
    raise AssertionError("no such address")


@pytest.mark.parametrize("mode", ["r", "c"])
def test_columns_are_copied_and_no_page_stays(file: Path, mode: Any) -> None:
    mapped = np.load(file, mmap_mode=mode)
    rows = InputRows(InPlaceFeatures(mapped), np.dtype(np.float32))
    assert rows.is_mapped
    out = np.full((ROWS, 32), -1, np.float32)
    rows.copy_columns(60, out, Workers(1, "test"))
    np.testing.assert_array_equal(out[:, :10], np.load(file)[:, 60:])
    assert (out[:, 10:] == -1).all()
    # A page may be shared by two chunks of rows.
    assert resident_kib(mapped) < mapped.nbytes / 1024 / 4


@pytest.mark.parametrize("is_locked", [False, True])
def test_what_is_in_memory_alone_is_not_forgotten(file: Path, is_locked: bool) -> None:
    private = np.load(file, mmap_mode="c")
    assert find_mmap(private) is not None
    private[ROWS // 2, 3] = -5
    private.flags.writeable = not is_locked
    assert find_mmap(private) is None
    assert find_mmap(private[: ROWS // 4]) is None


def test_whole_pages_are_forgotten_and_read_again(file: Path) -> None:
    mapped = np.load(file, mmap_mode="r")
    expected = np.load(file)
    assert mapped.sum() == expected.sum()
    MmapRows(mapped).drop_pages(10, 3000)
    np.testing.assert_array_equal(mapped, expected)


def test_what_is_in_memory_has_no_map() -> None:
    assert find_mmap(np.ones((3, 4), np.float32)) is None
    assert find_mmap(np.ones((3, 4), np.float32)[1:].view(np.uint32)) is None


def test_the_features_of_a_folder_are_mapped(tmp_path: Path) -> None:
    run_here("data", "convert", "synthetic:tiny", "tiny", cwd=tmp_path)
    features: Any = hyrt.load(tmp_path / "tiny").features
    assert find_mmap(features.values) is not None
    assert find_mmap(features.matrix) is not None
