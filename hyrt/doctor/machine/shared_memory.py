"""/dev/shm: containers get 64 MiB of it unless told otherwise."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hyrt.doctor.finding import DoctorFinding, ok, warning
from hyrt.doctor.machine.writable import why_not_writable
from hyrt.quantities import size

_CONSEQUENCE = "libraries that start processes fail"
_SMALL_BYTES = 64 * 2**20
_REMEDY = "docker run --shm-size=1g (or --ipc=host), or mount -o remount,size=1g /dev/shm"


def check_shared_memory(folder: Path = Path("/dev/shm")) -> list[DoctorFinding]:
    """Its size.

    hyrt's own stages are threads and need none of it; processes that hand each other data (torch's
    DataLoader, NCCL) do, and end with a bus error where it is small.
    """
    if not folder.is_dir():
        if sys.platform != "linux":
            return []
        return warning("shared memory", f"{folder} does not exist: {_CONSEQUENCE}", _REMEDY)
    state = os.statvfs(folder)
    figures = {"size_bytes": state.f_blocks * state.f_frsize, "free_bytes": state.f_bavail * state.f_frsize}
    problem = why_not_writable(folder)
    if problem:
        return warning("shared memory", f"{problem}: {_CONSEQUENCE}", _REMEDY, figures)
    found = f"{size(figures['free_bytes'])} free of {size(figures['size_bytes'])} in {folder}"
    if figures["size_bytes"] <= _SMALL_BYTES:
        enough = "enough for hyrt, whose stages are threads, but not for torch's DataLoader or NCCL beside it"
        return warning("shared memory", f"{found}: {enough}", _REMEDY, figures)
    return ok("shared memory", found, figures)
