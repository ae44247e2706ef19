"""Check of /dev/shm: containers get 64 MiB by default."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hyrt.doctor.finding import DoctorFinding, ok, warning
from hyrt.doctor.machine.writable import why_not_writable
from hyrt.quantities import size

_SHARED_MEMORY_CONSEQUENCE = "libraries that start processes fail"
_SMALL_BYTES = 64 * 2**20
_SHARED_MEMORY_REMEDY = "docker run --shm-size=1g (or --ipc=host), or mount -o remount,size=1g /dev/shm"


def check_shared_memory(folder: Path = Path("/dev/shm")) -> list[DoctorFinding]:
    """Check the size of /dev/shm.

    hyrt's stages are threads and do not need it. Processes that share data (torch's DataLoader, NCCL) do, and
    crash with a bus error if it is too small.
    """
    if not folder.is_dir():
        if sys.platform != "linux":
            return []
        return warning(
            "shared memory", f"{folder} does not exist: {_SHARED_MEMORY_CONSEQUENCE}", _SHARED_MEMORY_REMEDY
        )
    stats = os.statvfs(folder)
    figures = {"size_bytes": stats.f_blocks * stats.f_frsize, "free_bytes": stats.f_bavail * stats.f_frsize}
    problem = why_not_writable(folder)
    if problem:
        return warning(
            "shared memory", f"{problem}: {_SHARED_MEMORY_CONSEQUENCE}", _SHARED_MEMORY_REMEDY, figures
        )
    found = f"{size(figures['free_bytes'])} free of {size(figures['size_bytes'])} in {folder}"
    if figures["size_bytes"] <= _SMALL_BYTES:
        enough = (
            "enough for hyrt, whose stages are threads, but not for torch's DataLoader or NCCL next to it"
        )
        return warning("shared memory", f"{found}: {enough}", _SHARED_MEMORY_REMEDY, figures)
    return ok("shared memory", found, figures)
