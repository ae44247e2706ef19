"""A cache of compiled kernels of its own, damaged as disks and kills damage it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyrt.doctor.finding import DoctorFinding
from hyrt.doctor.software_checks import check_kernel_cache, evaluate_kernel_cache
from hyrt.runtime.isolated_worker import Answer, IsolatedWorker

COMPILE = (
    "import numpy as np\nfrom hyrt.graph.row_kernels import gather_rows\nx = np.ones((4, 4), np.float32)\n"
    "gather_rows(x, np.arange(4, dtype=np.int32), x.copy(), 0, 4)"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    subprocess.run(
        [sys.executable, "-c", COMPILE], env={**os.environ, "NUMBA_CACHE_DIR": str(folder)}, check=True
    )
    return folder


@pytest.fixture
def truncated(request: pytest.FixtureRequest, cache: Path) -> Iterator[Path]:
    (file,) = cache.glob(request.param)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    yield file
    file.write_bytes(whole)


def checked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> DoctorFinding:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    with IsolatedWorker() as children:
        (found,) = check_kernel_cache(children, 60.0)
    return found


def test_a_whole_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked(cache, monkeypatch)
    assert found.state == "ok", found
    assert found.figures["files"] == len(list(cache.rglob("*.nb[ic]")))
    assert all(Path(folder).is_relative_to(cache) for folder in found.figures["folders"])


@pytest.mark.parametrize(
    "truncated",
    [
        "graph_*/row_kernels.gather_rows-*.nbi",
        "graph_*/row_kernels.gather_rows-*.nbc",
    ],
    indirect=True,
)
def test_a_damaged_file_is_named(truncated: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = checked(cache, monkeypatch)
    assert found.state == "warning"
    assert list(found.figures["damaged"]) == [str(truncated)]
    assert found.remedy == "nothing to do: the next run compiles them again"


def test_a_file_in_place_of_the_chosen_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    found = checked(file, monkeypatch)
    assert found.state == "warning"
    assert f"NUMBA_CACHE_DIR={file} cannot be used" in found.found


def judged(used: Answer, chosen: str | None = None) -> DoctorFinding:
    (found,) = evaluate_kernel_cache(
        {"structure": Answer(({"damaged": {}, "places": []},)), "used": used}, chosen
    )
    return found


def test_no_place_for_kernels_is_broken_or_a_warning() -> None:
    none = judged(
        Answer(problem="RuntimeError: cannot cache function 'f': no locator available for file 'x'")
    )
    assert none.state == "broken"
    assert "NUMBA_CACHE_DIR" in none.remedy
    whole = ({"folder": "/tmp/hyrt-kernels-x/nn", "problem": ""}, {"files": 0, "bytes": 0, "damaged": {}})
    temporary = judged(Answer(whole), "/tmp/hyrt-kernels-x")
    assert temporary.state == "warning"
    assert "compiles them again" in temporary.found
    unwritable = (
        {"folder": "/ro/nn", "problem": "/ro/nn cannot be written: Read-only file system"},
        *whole[1:],
    )
    assert judged(Answer(unwritable)).state == "warning"
