"""Check of the CPUs that a run may use: affinity mask and cgroup quota, compared with the machine."""

from __future__ import annotations

import math
import os
from pathlib import Path

from hyrt.doctor.finding import DoctorFinding, ok, warning
from hyrt.machine.cores import cgroup_limits, processor_name


def check_cpus(
    root: Path = Path("/"), affinity: int | None = None, host: int | None = None
) -> list[DoctorFinding]:
    """Report the CPUs of the machine, of this process and of its cgroup.

    Parameters
    ----------
    root
        Folder that contains `proc` and `sys`.
    affinity
        Number of CPUs in the process's affinity mask; read from the system by default.
    host
        Number of CPUs of the machine; read from the system by default.
    """
    host = (os.cpu_count() or 1) if host is None else host
    affinity = _affinity_size(host) if affinity is None else affinity
    quota = cgroup_limits(root / "proc/self/cgroup", root / "sys/fs/cgroup")["cpus"]
    usable = affinity if quota is None else max(1, min(affinity, math.ceil(quota)))
    figures = {
        "host": host,
        "affinity": affinity,
        "cgroup_cpus": quota,
        "usable": usable,
        "model": processor_name(),
    }
    reasons = []
    if affinity < host:
        reasons.append(f"the affinity mask allows {affinity}")
    if quota is not None and quota < affinity:
        reasons.append(f"the control group allows the time of {quota:g} CPUs")
    found = f"{usable} of {host}{': ' if reasons else ''}{' and '.join(reasons)}"
    if quota is not None and quota < 1:
        return warning(
            "cpus",
            f"{found}: less than one, so all threads of a run are paused repeatedly",
            "give the container at least one CPU (docker run --cpus, limits.cpu of a pod, cpu.max)",
            figures,
        )
    return ok("cpus", found, figures)


def _affinity_size(host: int) -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else host
