"""XRT's OpenCL runtime without a card, as in Debian's libxrt1: for processes that know of no other.

Its emulation `noop` runs everything of the runtime but the driver: programs are read, buffers placed,
commands ordered and timed. Kernels start and end; nothing is computed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
CHILD = Path(__file__).with_name("xrt_child.py")
_RUNTIME = "libxilinxopencl.so.2"


def library_folder() -> Path | None:
    """Where the system's packages put XRT's libraries."""
    return next((path.parent for path in sorted(Path("/usr/lib").glob(f"*/{_RUNTIME}"))), None)


def missing() -> str:
    """Why tests with XRT's runtime cannot run; empty if they can."""
    return (
        ""
        if library_folder()
        else "XRT's runtime is not installed (on Debian and Ubuntu: apt-get install libxrt1)"
    )


def environment(folder: Path, xclbin: Path, *, mode: str = "noop") -> dict[str, str]:
    """Variables for a process that finds XRT: what an installation in one folder has, made of links."""
    libraries = library_folder()
    assert libraries is not None
    (folder / "lib").mkdir(exist_ok=True)
    for library in (*libraries.glob("libxrt*.so.2*"), *libraries.glob("libxilinx*.so.2*")):
        link = folder / "lib" / library.name
        if not link.exists():
            link.symlink_to(library)
    drivers = folder / "drivers"
    drivers.mkdir(exist_ok=True)
    (drivers / "xilinx.icd").write_text(f"{_RUNTIME}\n", encoding="utf-8")
    paths = [ROOT, ROOT / "devices", ROOT / "perfmodel", ROOT / "hls", ROOT / "tests"]
    return os.environ | {
        "OCL_ICD_VENDORS": str(drivers),
        "XILINX_XRT": str(folder),
        "XCL_EMULATION_MODE": mode,
        "HYRT_XCLBIN": str(xclbin),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }


def ask(scenario: str, variables: Mapping[str, str]) -> tuple[Any, str]:
    """Run one scenario of `xrt_child.py` in a process of its own; its answer, and what XRT said on stderr."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(CHILD), scenario],
        env=dict(variables),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr
