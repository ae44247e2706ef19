"""How many CPUs this process may use, from its affinity mask and its control groups' limits."""

from __future__ import annotations

import math
import os
import platform
from contextlib import suppress
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
LOCAL_RANKS = "LOCAL_WORLD_SIZE"
"""The variable in which torchrun says how many ranks it has started on a machine."""


def available_cores() -> int:
    """CPUs whose time this process may use, at least 1; of those that ranks of a run share, its part."""
    return max(1, shared_cores() // ranks_that_share_cores())


def shared_cores() -> int:
    """CPUs whose time this process may use, at least 1, together with other ranks of its run."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))["cpus"]
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def ranks_that_share_cores() -> int:
    """How many ranks a launcher has started on the CPUs of this process; 1 outside of a run on ranks.

    torchrun lets each of them use all CPUs that it may use itself; a launcher that binds them, such as
    numactl, gives each its own.
    """
    if "RANK" not in os.environ:
        return 1
    if hasattr(os, "sched_getaffinity"):
        with suppress(OSError):
            if os.sched_getaffinity(os.getppid()) != os.sched_getaffinity(0):
                return 1
    return local_ranks()


def local_ranks() -> int:
    """Return how many ranks of a run the environment says are on this machine, at least 1."""
    count = os.environ.get(LOCAL_RANKS, "")
    return max(1, int(count)) if count.isdecimal() else 1


def processor_name() -> str | None:
    """The processor's model, as the system calls it; None where it says nothing."""
    return _said(_CPUINFO, "model name") or platform.processor() or None


def processor_vendor(cpuinfo: Path = _CPUINFO) -> str | None:
    """What an x86 processor says of its maker, as `GenuineIntel`; None where the system does not tell.

    Parameters
    ----------
    cpuinfo
        The file in which Linux describes the processors.
    """
    return _said(cpuinfo, "vendor_id")


def _said(cpuinfo: Path, *keys: str) -> str | None:
    """What the description of processors says first under one of the keys."""
    for line in read_system_file(cpuinfo).splitlines():
        key, _, value = line.partition(":")
        if key.strip() in keys:
            return value.strip()
    return None


# What Linux calls the instructions that decide how fast products are, x86 and Arm, in its order of widths.
_VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2", "sve": "SVE", "asimd": "NEON"}
_LOW_PRECISION = {"amx_bf16": "AMX bf16", "avx512_bf16": "bf16", "bf16": "bf16"}


def vector_instructions(cpuinfo: Path = _CPUINFO) -> list[str]:
    """The processor's widest vector instructions, and those for bfloat16; empty where they are not known.

    Parameters
    ----------
    cpuinfo
        The file in which Linux lists a processor's features.
    """
    features = (_said(cpuinfo, "flags", "Features") or "").split()
    found = [
        next((name for flag, name in kind.items() if flag in features), "")
        for kind in (_VECTORS, _LOW_PRECISION)
    ]
    return [name for name in found if name]


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


def memory_left(membership: Path, root: Path) -> int | None:
    """Bytes that may still be taken: the least over this process's control groups; None without a limit.

    Page cache that the system gives back under pressure does not count as taken.

    Parameters
    ----------
    membership, root
        The arguments of `cgroup_limits`.
    """
    left = [max(0, limit - taken) for limit, taken in _memory(membership, root) if taken is not None]
    return min(left, default=None)


def _memory(membership: Path, root: Path) -> list[tuple[int, int | None]]:
    """The memory limit of each group, and what it has taken of it; None where nothing says so."""
    files = {
        "": ("memory.max", "memory.current", "inactive_file"),
        "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }
    found: list[tuple[int, int | None]] = []
    for controller, (limit_file, usage_file, cache) in files.items():
        for folder in _groups(membership, root, controller):
            entries = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat") if " " in line)
            cached = int(entries.get(cache, 0))
            taken = next((usage - cached for usage in _number(folder / usage_file)), None)
            # Version 1 writes "no limit" as the largest multiple of a page below 2^63.
            found += [(limit, taken) for limit in _number(folder / limit_file) if limit < 2**62]
    return found


def _groups(membership: Path, root: Path, controller: str) -> list[Path]:
    """The group of this process and those above it, which bind too; the controller "" is version 2."""
    path = ""
    for line in _lines(membership):
        _, controllers, own = line.split(":", 2)
        path = own if controller in controllers.split(",") else path
    # In a container the own group is often mounted as the root.
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
    """Read a system file that need not exist; empty then."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
