from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hyrt_devices.fpga.probe import xclbin_path
from hyrt_perfmodel.user_cache import user_cache_dir

import hyrt
from hyrt.doctor.software_checks import evaluate_calibration
from hyrt.errors import ConfigError, DataError, DataWriteError
from hyrt.graph import open_graph
from hyrt.graph.formats import ogb_dataset
from hyrt.predict.calibrate import store
from hyrt.runtime import process_setup
from hyrt.runtime.isolated_worker import Answer


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(process_setup.os, "access", lambda path, mode: False)


@pytest.mark.parametrize("threads", ["0", "-1", "abc", "1.5", "²", ""])
def test_what_keeps_numba_from_compiling_is_named(monkeypatch: pytest.MonkeyPatch, threads: str) -> None:
    monkeypatch.setenv("NUMBA_NUM_THREADS", "2")
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    process_setup.check_compiler()
    monkeypatch.setenv("NUMBA_NUM_THREADS", threads)
    with pytest.raises(ConfigError, match=f"^NUMBA_NUM_THREADS is '{threads}': set it to an integer of at "):
        process_setup.check_compiler()
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with pytest.raises(ConfigError, match=r"^NUMBA_DISABLE_JIT is set, .* compiled kernels: unset it$"):
        process_setup.check_compiler()


def test_a_private_folder_is_made_and_said(nowhere: None) -> None:
    import numba

    before = numba.config.CACHE_DIR
    try:
        with pytest.warns(RuntimeWarning, match="set NUMBA_CACHE_DIR"):
            process_setup.ensure_kernel_cache()
        folder = Path(os.environ["NUMBA_CACHE_DIR"])
        assert folder.is_dir()
        assert folder.stat().st_mode & 0o077 == 0
        assert str(folder) == numba.config.CACHE_DIR
    finally:
        numba.config.CACHE_DIR = before
        os.environ.pop("NUMBA_CACHE_DIR", None)


@pytest.mark.parametrize("named", ["", "mine"])
def test_no_place_at_all_is_told_where_kernels_are_needed(
    nowhere: None, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose files are all read-only: importing hyrt is no error, using it is."""

    def refuses(**_: object) -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.mkdtemp", refuses)
    if named:
        monkeypatch.setenv("NUMBA_CACHE_DIR", named)
    process_setup.ensure_kernel_cache()
    says = r"cannot write to any folder for .* kernels, not .*: set NUMBA_CACHE_DIR to a writable folder$"
    for use in (process_setup.check_compiler, lambda: hyrt.load("synthetic:tiny")):
        with pytest.raises(ConfigError, match=says):
            use()


def test_what_the_user_set_stays(nowhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "mine")
    process_setup.ensure_kernel_cache()
    assert os.environ["NUMBA_CACHE_DIR"] == "mine"


def test_the_folder_goes_with_the_process(tmp_path: Path) -> None:
    script = (
        "import os, warnings; warnings.simplefilter('ignore'); os.access = lambda path, mode: False; "
        "os.environ.pop('NUMBA_CACHE_DIR', None); import hyrt; print(os.environ['NUMBA_CACHE_DIR'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).exists()


@pytest.fixture
def other_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user who may not enter the folder `locked`; root may, and so becomes another one."""
    (tmp_path / "locked").mkdir(mode=0)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    if os.getuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    yield
    os.setresuid(0, 0, 0)


def test_a_home_that_may_not_be_entered(
    tmp_path: Path, other_user: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "locked" / "home"
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(PermissionError):
        (home / ".cache").exists()
    # As where hyrt is installed for all users: the package's folder is not writable either.
    monkeypatch.setattr(process_setup, "__file__", "/proc/hyrt/runtime/process_setup.py")
    with pytest.warns(RuntimeWarning, match="set NUMBA_CACHE_DIR"):
        process_setup.ensure_kernel_cache()
    assert os.access(os.environ.pop("NUMBA_CACHE_DIR"), os.W_OK)


def test_what_else_looks_into_home(tmp_path: Path, other_user: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "locked" / "home"))
    assert store.usable_calibration() == (None, "")
    assert store.read_measured() is None
    with pytest.raises(
        DataWriteError, match=r"\(Permission denied\): set XDG_CACHE_HOME to a writable folder"
    ):
        store.save_calibration(None)  # type: ignore[arg-type]
    assert evaluate_calibration(Answer(), user_cache_dir() / "hyrt")[0].state == "warning"
    with pytest.raises(
        DataError,
        match=r"ogbn-arxiv(: .*\(Permission denied\): set XDG_CACHE_HOME| was found neither .*hyrt\[ogb\])",
    ):
        ogb_dataset.read_ogb("ogbn-arxiv", None)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)
    with pytest.raises(RuntimeError):
        Path.home()
    assert not user_cache_dir().exists()
    assert store.usable_calibration() == (None, "")
    assert not xclbin_path().exists()
    with pytest.raises(DataError, match="~nobody/x: no such file or folder"):
        open_graph("~nobody/x")


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert user_cache_dir() == tmp_path / ".cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "there"))
    assert user_cache_dir() == tmp_path / "there"
