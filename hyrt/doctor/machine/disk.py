"""Check of the output folder: is it writable, and do the checkpoints fit?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyrt.doctor.finding import DoctorFinding, broken, ok, warning
from hyrt.doctor.machine.memory import itemized
from hyrt.doctor.machine.writable import nearest_folder, why_not_writable
from hyrt.quantities import size

_LOW_BYTES = 2**30
_DISK_REMEDY = "free space, or choose another folder: hyrt run --output FOLDER"


def check_disk(output: Path, need: Mapping[str, Any] | None) -> list[DoctorFinding]:
    """Check the folder that will hold the run folders; it need not exist yet.

    `need` has `total_bytes`, `least_bytes` (a run fails without it), and bytes by purpose; None if unknown.
    """
    problem = why_not_writable(output)
    if problem:
        return broken(
            "run folder",
            f"no run folder can be made in {output}: {problem}",
            _DISK_REMEDY,
            {"output": str(output)},
        )
    folder = nearest_folder(output)
    stats = os.statvfs(folder)
    free = stats.f_bavail * stats.f_frsize
    figures = {
        "output": str(output),
        "free_bytes": free,
        "free_files": stats.f_favail if stats.f_files else None,
        "need": None if need is None else dict(need),
    }
    found = f"{size(free)} free in {folder}"
    if need is not None:
        found = f"{found}; a run writes about {itemized(need)}"
        if need["least_bytes"] > free:
            return broken(
                "run folder",
                f"{found}: the first checkpoint needs {size(need['least_bytes'])} and does not fit",
                f"{_DISK_REMEDY}, or lower model.hidden",
                figures,
            )
        if need["total_bytes"] > free:
            return warning(
                "run folder",
                f"{found}: the first checkpoint fits, but not all of them",
                f"{_DISK_REMEDY}, or lower checkpoint.keep",
                figures,
            )
    elif free < _LOW_BYTES:
        return warning("run folder", f"only {found}", _DISK_REMEDY, figures)
    return ok("run folder", found, figures)
