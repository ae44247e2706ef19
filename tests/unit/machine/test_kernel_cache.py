from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hyrt.machine import kernel_cache


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(kernel_cache.os, "access", lambda path, mode: False)


def test_a_private_folder_is_made_and_said(nowhere: None) -> None:
    import numba

    before = numba.config.CACHE_DIR
    try:
        with pytest.warns(RuntimeWarning, match="set NUMBA_CACHE_DIR"):
            kernel_cache.ensure_kernel_cache()
        folder = Path(os.environ["NUMBA_CACHE_DIR"])
        assert folder.is_dir()
        assert folder.stat().st_mode & 0o077 == 0
        assert str(folder) == numba.config.CACHE_DIR
    finally:
        numba.config.CACHE_DIR = before
        os.environ.pop("NUMBA_CACHE_DIR", None)


def test_what_the_user_set_stays(nowhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "mine")
    kernel_cache.ensure_kernel_cache()
    assert os.environ["NUMBA_CACHE_DIR"] == "mine"


def test_the_folder_goes_with_the_process(tmp_path: Path) -> None:
    script = (
        "import os, warnings; warnings.simplefilter('ignore'); os.access = lambda path, mode: False; "
        "os.environ.pop('NUMBA_CACHE_DIR', None); import hyrt; print(os.environ['NUMBA_CACHE_DIR'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not Path(done.stdout.strip()).exists()
