"""Where PoCL keeps what it compiles: its own folder, a temporary one instead, or none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from hyrt_devices.opencl.probe import survey
from hyrt_devices.opencl_host import driver_workarounds as driver_cache
from hyrt_devices.opencl_host.driver_workarounds import ensure_driver_cache
from opencl_doubles import Device, Platform, module

from hyrt.errors import MachineWarning

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("POCL_CACHE_DIR", raising=False)
    monkeypatch.setenv("PYOPENCL_NO_CACHE", "false")
    monkeypatch.delenv("PYOPENCL_NO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pocl" / "kcache"


def full(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """What is below the folder has 300 KiB left; other places have space."""

    def usage(path: str | Path) -> Usage:
        return Usage(1 << 40, 0, 300 << 10 if str(path).startswith(str(folder)) else 1 << 39)

    monkeypatch.setattr(driver_cache.shutil, "disk_usage", usage)


def test_a_folder_that_has_room_is_left_to_pocl(cache: Path) -> None:
    ensure_driver_cache()
    assert not {"POCL_CACHE_DIR", "PYOPENCL_NO_CACHE"} & set(os.environ)
    assert not cache.exists()


def test_a_full_or_unwritable_folder_is_replaced_and_said(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POCL_CACHE_DIR", "")  # Taken back at the end of the test.
    for why in ("has only 300 KiB left", "is not writable"):
        monkeypatch.delenv("POCL_CACHE_DIR")
        if why.startswith("has"):
            full(monkeypatch, tmp_path)
        else:
            monkeypatch.setattr(driver_cache.os, "access", lambda path, mode: False)
        with pytest.warns(MachineWarning, match=f"{cache}, {why}, .*, or set POCL_CACHE_DIR to another one"):
            ensure_driver_cache()
        # pyopencl refuses to launch kernels where it cannot keep how it does so.
        assert os.environ.pop("PYOPENCL_NO_CACHE") == "true"
        made = Path(os.environ["POCL_CACHE_DIR"])
        assert made.stat().st_mode & 0o077 == 0
        shutil.rmtree(made)


def test_what_the_user_set_stays_and_its_fault_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PoCL ends the process where it cannot write, so the device is not offered."""
    mine = tmp_path / "mine"
    monkeypatch.setenv("POCL_CACHE_DIR", str(mine))
    full(monkeypatch, tmp_path)
    device = Device("cpu-X", version="OpenCL 3.0 PoCL HSTR: cpu-x86_64-haswell")
    other = Device("G", type=4)
    newer = Device("cpu-X", version="OpenCL 3.0 PoCL HSTR: cpu-x86_64-haswell")
    platforms = [
        Platform("Portable Computing Language", "OpenCL 3.0 PoCL 7.0  Linux", [newer]),
        Platform("Portable Computing Language", "OpenCL 3.0 PoCL 6.0  Linux", [device]),
        Platform("NVIDIA CUDA", devices=[other]),
    ]
    monkeypatch.setitem(sys.modules, "pyopencl", module(platforms))
    found = survey()
    assert [each.device for each in found.found] == [other]
    assert found.reasons == [
        f"PoCL's cache of compiled kernels, {mine}, has only 300 KiB left: "
        "set POCL_CACHE_DIR to another folder"
    ]
    assert os.environ["POCL_CACHE_DIR"] == str(mine)


def test_the_folder_goes_with_the_process() -> None:
    script = (
        "import os, warnings; warnings.simplefilter('ignore'); os.environ.pop('POCL_CACHE_DIR', None)\n"
        "os.environ['XDG_CACHE_HOME'] = '/proc/self'\n"
        "from hyrt_devices.opencl_host.driver_workarounds import ensure_driver_cache\n"
        "ensure_driver_cache(); print(os.environ['POCL_CACHE_DIR'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "hyrt-opencl-" in done.stdout
    assert not Path(done.stdout.strip()).exists()
