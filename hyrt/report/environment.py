"""What a run ran on and with: versions, machine, limits."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("hyrt", "torch", "numpy", "numba", "safetensors", "pydantic")
_VARIABLES = ("OMP_", "MKL_", "OPENBLAS_", "NUMBA_", "KMP_", "GOMP_", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD")


def describe_environment() -> dict[str, Any]:
    """Describe machine and software as values JSON can hold.

    What cannot be found out is None. Holds neither host nor user name. Imports none of the packages it names.

    Returns
    -------
    `date` (UTC, ISO 8601), `command` (list), `versions`, `platform`, `cpu` (`model`, `physical_cores`,
    `logical_cores`, `affinity`: the CPUs this process may use), `memory_bytes`, `cgroup` (`cpus`,
    `memory_bytes`: the limits, None where there is none) and `variables`, those that change how libraries
    use threads.
    """
    import psutil

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "cpu": {
            "model": _cpu_model(),
            "physical_cores": psutil.cpu_count(logical=False),
            "logical_cores": psutil.cpu_count(),
            "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        },
        "memory_bytes": psutil.virtual_memory().total,
        "cgroup": cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")),
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLES)
        },
    }


def cgroup_limits(membership: Path, root: Path) -> dict[str, float | int | None]:
    """Read the CPU and memory limits of this process's control group, version 1 or 2.

    Parameters
    ----------
    membership
        The file that names the groups, `/proc/self/cgroup`.
    root
        Where the control groups are mounted, `/sys/fs/cgroup`.

    Returns
    -------
    `cpus` (how many CPUs' time may be used) and `memory_bytes`; None where there is no limit.
    """
    groups = {"": "", "cpu": "", "memory": ""}
    for line in _read(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        groups |= dict.fromkeys(controllers.split(","), path)
    cpus: list[float] = []
    memory: list[int] = []
    # A limit of any group above binds too; in a container the own group is often mounted as the root.
    for folder in _upwards(root, groups[""]):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            cpus.append(int(quota) / int(period))
        memory += _number(folder / "memory.max")
    for folder in _upwards(root / "cpu", groups["cpu"]):
        for quota_us in _number(folder / "cpu.cfs_quota_us"):
            cpus += [quota_us / period_us for period_us in _number(folder / "cpu.cfs_period_us")]
    for folder in _upwards(root / "memory", groups["memory"]):
        # Version 1 writes "no limit" as the largest multiple of a page below 2^63.
        memory += [limit for limit in _number(folder / "memory.limit_in_bytes") if limit < 2**62]
    return {"cpus": min(cpus, default=None), "memory_bytes": min(memory, default=None)}


def _upwards(root: Path, path: str) -> list[Path]:
    folders = [root]
    for part in path.strip("/").split("/"):
        if part in ("", ".."):
            continue
        folders.append(folders[-1] / part)
    return folders


def _number(path: Path) -> list[int]:
    text = _read(path)
    return [int(text)] if text.isdigit() else []


def _read(path: Path) -> str:
    """Read a system file that need not exist; empty then."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or None
