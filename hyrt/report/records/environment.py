"""Environment of a run: versions, machine, limits."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from hyrt.errors import listed
from hyrt.machine.cores import cgroup_limits, processor_name

_PACKAGES = ("hyrt", "torch", "numpy", "numba", "safetensors", "pydantic")
_NUMERIC_PACKAGES = ("hyrt", "torch", "numpy", "numba")
_VARIABLES = ("OMP_", "MKL_", "OPENBLAS_", "NUMBA_", "KMP_", "GOMP_", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD")


def describe_environment() -> dict[str, Any]:
    """Describe machine and software as JSON values.

    Unknown values are None. Contains neither host name nor user name. Does not import the packages whose
    versions it
    reports.

    Returns
    -------
    `date` (UTC, ISO 8601), `command` (list), `versions`, `platform`, `cpu` (`model`, `physical_cores`,
    `logical_cores`, `affinity`: the CPUs that this process may use), `memory_bytes`, `cgroup` (`cpus`,
    `memory_bytes`: the limits, None without a limit) and `variables` (environment variables that affect how
    libraries use threads).
    """
    import psutil

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": list(sys.argv),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "cpu": {
            "model": processor_name(),
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


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def changed_versions(run: Path) -> str:
    """List packages whose version has changed since a run was started: `hyrt 0.1.0 (now 0.2.0)`.

    Considers the packages that affect the bits of a step. Empty if there are no changes or the versions are
    unknown.
    """
    try:
        versions = json.loads((run / "env.json").read_bytes())["versions"]
        recorded = {name: versions[name] for name in _NUMERIC_PACKAGES if versions.get(name)}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ""
    now = {name: _version(name) for name in recorded}
    changed = [f"{name} {old} (now {now[name]})" for name, old in recorded.items() if now[name] != old]
    return listed(changed) if changed else ""
