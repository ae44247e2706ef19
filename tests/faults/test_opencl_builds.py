"""Two rounds of `python tools/faults/opencl_builds.py`: one with a killed process, one with SIGINT."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hyrt_devices.opencl import OpenclDevice

TOOL = Path(__file__).parents[2] / "tools" / "faults" / "opencl_builds.py"


@pytest.mark.skipif(not OpenclDevice.probe(), reason=OpenclDevice.missing() or "there is an OpenCL device")
@pytest.mark.limit(400)
def test_builds_at_once_end_well_beside_kills_and_signals() -> None:
    done = subprocess.run(
        [sys.executable, TOOL, "--rounds", "2", "--processes", "4"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "9 of 9 builds ended well" in done.stdout
