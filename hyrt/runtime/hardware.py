"""CPUs and memory that this process may use, and its peak memory."""

from __future__ import annotations

import math
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
LOCAL_RANKS_VARIABLE = "LOCAL_WORLD_SIZE"
"""Environment variable in which torchrun stores the number of ranks on a machine."""


def available_cores() -> int:
    """Return the number of CPUs for this process, at least 1. Ranks that share CPUs get equal numbers."""
    return max(1, shared_cores() // num_ranks_sharing_cores())


def shared_cores() -> int:
    """Return the number of CPUs, at least 1, that this process and the other ranks on them may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))["cpus"]
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def num_ranks_sharing_cores() -> int:
    """Return the number of ranks that share the CPUs of this process; 1 without a launcher.

    torchrun lets every rank use all CPUs; a launcher that binds ranks to CPUs, such as numactl, gives each
    rank separate CPUs.
    """
    if "RANK" not in os.environ:
        return 1
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):
            if os.sched_getaffinity(os.getppid()) != os.sched_getaffinity(0):
                return 1
    return num_local_ranks()


def num_local_ranks() -> int:
    """Return the number of ranks on this machine according to the environment, at least 1."""
    count = os.environ.get(LOCAL_RANKS_VARIABLE, "")
    return max(1, int(count)) if count.isdecimal() else 1


def processor_name() -> str | None:
    """Return the processor's model name; None if the system does not report it."""
    return _cpuinfo_value(_CPUINFO, "model name") or platform.processor() or None


def processor_vendor(cpuinfo: Path = _CPUINFO) -> str | None:
    """Return the vendor of an x86 processor, such as `GenuineIntel`; None if it is unknown."""
    return _cpuinfo_value(cpuinfo, "vendor_id")


def _cpuinfo_value(cpuinfo: Path, *keys: str) -> str | None:
    for line in read_system_file(cpuinfo).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in keys:
            return value.strip()
    return None


# Linux names of the instruction sets that determine the speed of matrix products (x86 and Arm), widest first.
_VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "sve": "SVE", "asimd": "NEON"}
_LOW_PRECISION = {"amx_bf16": "AMX bf16", "avx512_bf16": "bf16", "bf16": "bf16"}


def vector_instructions(cpuinfo: Path = _CPUINFO) -> list[str]:
    """Return the processor's widest vector instructions and its bfloat16 instructions; empty if unknown."""
    features = (_cpuinfo_value(cpuinfo, "flags", "Features") or "").split()
    names = [
        next((name for flag, name in kind.items() if flag in features), "")
        for kind in (_VECTORS, _LOW_PRECISION)
    ]
    return [name for name in names if name]


def cgroup_limits(membership: Path, root: Path) -> dict[str, float | int | None]:
    """Read the limits of this process's control group, version 1 or 2: `cpus` and `memory_bytes`.

    A limit is None if there is none. `membership` is the file that names the groups, `/proc/self/cgroup`, and
    `root` the mount point of the control groups, `/sys/fs/cgroup`.
    """
    cpus: list[float] = []
    for folder in _groups(membership, root, ""):
        quota, _, period = read_system_file(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.isdigit():
            cpus.append(int(quota) / int(period))
    for folder in _groups(membership, root, "cpu"):
        for quota_us in _number(folder / "cpu.cfs_quota_us"):
            cpus += [quota_us / period_us for period_us in _number(folder / "cpu.cfs_period_us")]
    memory = [limit for limit, _ in _memory(membership, root)]
    return {"cpus": min(cpus, default=None), "memory_bytes": min(memory, default=None)}


def free_cgroup_memory(membership: Path, root: Path) -> int | None:
    """Return the free memory in bytes, the minimum over this process's control groups; None without a limit.

    Page cache that the system can reclaim counts as free.
    """
    free = [max(0, limit - used) for limit, used in _memory(membership, root) if used is not None]
    return min(free, default=None)


def _memory(membership: Path, root: Path) -> list[tuple[int, int | None]]:
    """Return (limit, usage) in bytes for each group; usage is None if it is not reported."""
    files = {
        "": ("memory.max", "memory.current", "inactive_file"),
        "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }
    limits: list[tuple[int, int | None]] = []
    for controller, (limit_file, usage_file, cache) in files.items():
        for folder in _groups(membership, root, controller):
            entries = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat") if " " in line)
            cached = int(entries.get(cache, 0))
            used = next((usage - cached for usage in _number(folder / usage_file)), None)
            # Version 1 represents "no limit" by the largest multiple of a page below 2^63.
            limits += [(limit, used) for limit in _number(folder / limit_file) if limit < 2**62]
    return limits


def _groups(membership: Path, root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's group and of its ancestors, whose limits also apply.

    `controller` is "" for version 2.
    """
    path = ""
    for line in _lines(membership):
        _, controllers, group = line.split(":", 2)
        path = group if controller in controllers.split(",") else path
    # In a container, the group of the process is often mounted as the root.
    folders = [root / controller]
    for part in path.strip("/").split("/"):
        if part not in ("", ".."):
            folders.append(folders[-1] / part)
    return folders


def _number(path: Path) -> list[int]:
    text = read_system_file(path)
    return [int(text)] if text.isdigit() else []


def _lines(path: Path) -> list[str]:
    return read_system_file(path).splitlines()


def read_system_file(path: Path) -> str:
    """Return the content of a system file, or an empty string if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def peak_memory_bytes() -> int:
    """Return the peak resident memory so far, in bytes; 0 if the system does not report it."""
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
