"""Checks of the host: CPUs, memory, shared memory, locked memory, output folder and memory bandwidth."""

from __future__ import annotations

import math
import os
import resource
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyrt.doctor.finding import DoctorFinding, broken, ok, warning
from hyrt.formatting import format_bytes
from hyrt.runtime.hardware import cgroup_limits, free_cgroup_memory, processor_name, read_system_file
from hyrt.runtime.isolated_worker import Answer, IsolatedWorker

_BLOCK = 4096


def first_existing_ancestor(path: Path) -> Path:
    """Return the first existing ancestor of `path`, or `path` itself."""
    path = path.absolute()
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def find_write_problem(folder: Path) -> str:
    """Try to write a file in a folder or its first existing ancestor; return the problem, or "".

    The file is always removed. It has no name if the system supports unnamed files.
    """
    parent = first_existing_ancestor(folder)
    if not parent.is_dir():
        return f"{parent} is not a folder"
    try:
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(bytes(_BLOCK))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{parent} cannot be written: {error.strerror or error}"
    return ""


def check_cpus(
    root: Path = Path("/"), affinity: int | None = None, host: int | None = None
) -> list[DoctorFinding]:
    """Report the CPUs of the machine, of this process and of its control group.

    `root` contains `proc` and `sys`. By default, the number of CPUs in the affinity mask (`affinity`) and of
    the machine (`host`) are read from the system.
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
        reasons.append(f"the control group allows {quota:g} CPUs")
    found = f"{usable} of {host}{': ' if reasons else ''}{' and '.join(reasons)}"
    if quota is not None and quota < 1:
        return warning(
            "cpus",
            f"{found}, which is less than one, so all threads of a run are paused repeatedly",
            "assign at least one CPU to the container (docker run --cpus, limits.cpu of a pod, cpu.max)",
            figures,
        )
    return ok("cpus", found, figures)


def _affinity_size(host: int) -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else host


# Memory of the smallest run: the interpreter with torch, numba and compiled kernels.
_MIN_RUN_BYTES = 2**29
# Estimates were up to a third above the measured peaks of runs, and never far below. Less memory than this
# fraction of an estimate is certainly not enough.
_CERTAIN_FRACTION = 0.7
_BATCHES_REMEDY = (
    "lower data.batch_size, sampler.fanout or runtime.max_in_flight_steps; convert "
    "the data to a folder, which is memory-mapped (hyrt data convert); or use a "
    "machine or container with more memory"
)
_WEIGHTS_REMEDY = (
    "lower model.hidden or model.layers, because the weights, gradients, optimizer "
    "state and a checkpoint use most of the memory"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Memory of the host in bytes."""

    total: int | None
    """Memory of the machine; None if unknown."""
    available: int | None
    """Memory that is currently available on the machine."""
    limit: int | None
    left: int | None
    """Unused part of `limit`, the memory limit of the control group; both are None without a limit."""

    @property
    def max_bytes(self) -> int | None:
        """Memory that a process could use on an idle machine; None if unknown."""
        return min((limit for limit in (self.total, self.limit) if limit is not None), default=None)

    @property
    def available_bytes(self) -> int | None:
        """Memory that a process can use now; None if unknown."""
        return min((limit for limit in (self.available, self.left) if limit is not None), default=None)


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Read the memory state from `proc` and `sys` under `root`."""
    entries: dict[str, int] = {}
    for line in read_system_file(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        number = rest.removesuffix("kB").strip()
        if number.isdigit():
            entries[name] = int(number) * 1024
    total, membership, groups = entries.get("MemTotal"), root / "proc/self/cgroup", root / "sys/fs/cgroup"
    if total is None and "SC_PHYS_PAGES" in os.sysconf_names:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = cgroup_limits(membership, groups)["memory_bytes"]
    return HostMemory(
        total=total,
        available=entries.get("MemAvailable"),
        limit=None if limit is None else int(limit),
        left=free_cgroup_memory(membership, groups),
    )


def check_memory(memory: HostMemory, need: Mapping[str, Any] | None) -> list[DoctorFinding]:
    """Report the available memory, and whether the run fits in it.

    `need` has `total_bytes` and the bytes by purpose, or is None if unknown.
    """
    figures = {
        "total_bytes": memory.total,
        "available_bytes": memory.available,
        "cgroup_limit_bytes": memory.limit,
        "cgroup_left_bytes": memory.left,
        "need": None if need is None else dict(need),
    }
    parts = [] if memory.available_bytes is None else [f"{format_bytes(memory.available_bytes)} free"]
    parts += [] if memory.total is None else [f"of {format_bytes(memory.total)}"]
    if memory.limit is not None and (memory.total is None or memory.limit < memory.total):
        parts.append(f"with a control group limit of {format_bytes(memory.limit)}")
    found = " ".join(parts) or "unknown on this system"
    needed = _MIN_RUN_BYTES if need is None else need["total_bytes"]
    remedy = _memory_remedy(need or {})
    impossible = memory.max_bytes is not None and _CERTAIN_FRACTION * needed > memory.max_bytes
    tight = memory.max_bytes is not None and needed > memory.max_bytes
    occupied = memory.available_bytes is not None and needed > memory.available_bytes
    if need is not None:
        found = f"{found}; the run needs about {format_needs(need)}"
    elif tight or occupied:
        found = f"{found}; the smallest run needs about {format_bytes(needed)}"
    if impossible:
        return broken("memory", found, remedy, figures)
    if tight or occupied:
        remedy = remedy if tight else f"stop other programs that use memory, or {remedy}"
        return warning("memory", found, remedy, figures)
    return ok("memory", found, figures)


def _memory_remedy(need: Mapping[str, Any]) -> str:
    """Choose the remedy by the purpose that needs most memory."""
    copies = need.get("weights_bytes", 0) + need.get("checkpoint_bytes", 0)
    return _WEIGHTS_REMEDY if 2 * copies > need.get("total_bytes", 0) else _BATCHES_REMEDY


def format_needs(need: Mapping[str, Any]) -> str:
    """Format `total_bytes` and its parts by purpose."""
    parts = ", ".join(
        f"{name.removesuffix('_bytes').replace('_', ' ')} {format_bytes(value)}"
        for name, value in need.items()
        if name not in ("total_bytes", "least_bytes") and value
    )
    return f"{format_bytes(need['total_bytes'])} ({parts})" if parts else format_bytes(need["total_bytes"])


_SHARED_MEMORY_CONSEQUENCE = "libraries that share memory between processes fail"
_SMALL_BYTES = 64 * 2**20
_SHARED_MEMORY_REMEDY = "docker run --shm-size=1g (or --ipc=host), or mount -o remount,size=1g /dev/shm"


def check_shared_memory(folder: Path = Path("/dev/shm")) -> list[DoctorFinding]:
    """Check the size of /dev/shm.

    The stages of hyrt are threads and do not need it, but processes that share data (torch's DataLoader,
    NCCL) crash with a bus error if it is too small.
    """
    if not folder.is_dir():
        if sys.platform != "linux":
            return []
        return warning(
            "shared memory", f"{folder} does not exist: {_SHARED_MEMORY_CONSEQUENCE}", _SHARED_MEMORY_REMEDY
        )
    stats = os.statvfs(folder)
    figures = {"size_bytes": stats.f_blocks * stats.f_frsize, "free_bytes": stats.f_bavail * stats.f_frsize}
    problem = find_write_problem(folder)
    if problem:
        return warning(
            "shared memory", f"{problem}: {_SHARED_MEMORY_CONSEQUENCE}", _SHARED_MEMORY_REMEDY, figures
        )
    found = f"{format_bytes(figures['free_bytes'])} free of {format_bytes(figures['size_bytes'])} in {folder}"
    if figures["size_bytes"] <= _SMALL_BYTES:
        enough = "enough for hyrt, whose stages are threads, but too little for torch's DataLoader or NCCL"
        return warning("shared memory", f"{found}: {enough}", _SHARED_MEMORY_REMEDY, figures)
    return ok("shared memory", found, figures)


_CAP_IPC_LOCK = 1 << 14
# Size of two staged mini-batches of the default size (25 MB each), rounded up; used without settings.
_DEFAULT_BYTES = 64 * 2**20


def check_locked_memory(
    devices: Sequence[str],
    need_bytes: float | None,
    *,
    limits: tuple[int, int] | None = None,
    status: Path = Path("/proc/self/status"),
) -> list[DoctorFinding]:
    """Compare the limit on locked memory with `need_bytes` for the mini-batches in flight to `devices`.

    Only devices with separate memory count. `need_bytes` is None if unknown. By default, `limits` (soft,
    hard) is read from the system; `status` lists the capabilities of the process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK) if limits is None else limits
    exempt = _may_lock_all(status)
    need = _DEFAULT_BYTES if need_bytes is None else need_bytes
    figures = {
        "soft_bytes": None if soft == resource.RLIM_INFINITY else soft,
        "hard_bytes": None if hard == resource.RLIM_INFINITY else hard,
        "exempt": exempt,
        "need_bytes": need_bytes,
        "devices": list(devices),
    }
    if soft == resource.RLIM_INFINITY:
        return ok("locked memory", "no limit", figures)
    found = f"at most {format_bytes(soft)} may be pinned"
    if exempt:
        return ok("locked memory", f"{found}, but this process is exempt (CAP_IPC_LOCK)", figures)
    if not devices:
        text = f"{found}; no device here has separate memory, so no locked memory is needed"
        return ok("locked memory", text, figures)
    if need <= soft:
        text = f"{found}; a run stages about {format_bytes(need)}"
        return ok("locked memory", text, figures)
    allowed = hard == resource.RLIM_INFINITY or hard >= need
    first = "ulimit -l unlimited" if hard == resource.RLIM_INFINITY else f"ulimit -l {int(hard) // 1024}"
    rest = (
        "docker run --ulimit memlock=-1, LimitMEMLOCK=infinity for a service, or memlock in "
        "/etc/security/limits.conf"
    )
    return warning(
        "locked memory",
        (
            f"{found}; {', '.join(devices)} need about {format_bytes(need)} for staging: a "
            "driver that counts pinned pages refuses them, or copies twice"
        ),
        f"{first}, or {rest}" if allowed else rest,
        figures,
    )


def _may_lock_all(status: Path) -> bool:
    for line in read_system_file(status).splitlines():
        name, _, value = line.partition(":")
        if name == "CapEff":
            return bool(int(value, 16) & _CAP_IPC_LOCK)
    return False


_LOW_BYTES = 2**30
_DISK_REMEDY = "free space, or choose another folder: hyrt run --output FOLDER"


def check_disk(output: Path, need: Mapping[str, Any] | None) -> list[DoctorFinding]:
    """Check the parent folder of the run folders, which need not exist yet.

    `need` has `total_bytes`, `least_bytes` (a run fails with less) and bytes by purpose; None if unknown.
    """
    problem = find_write_problem(output)
    if problem:
        return broken(
            "run folder",
            f"no run folder can be created in {output}: {problem}",
            _DISK_REMEDY,
            {"output": str(output)},
        )
    folder = first_existing_ancestor(output)
    stats = os.statvfs(folder)
    free = stats.f_bavail * stats.f_frsize
    figures = {
        "output": str(output),
        "free_bytes": free,
        "free_files": stats.f_favail if stats.f_files else None,
        "need": None if need is None else dict(need),
    }
    found = f"{format_bytes(free)} free in {folder}"
    if need is not None:
        found = f"{found}; a run writes about {format_needs(need)}"
        if need["least_bytes"] > free:
            return broken(
                "run folder",
                f"{found}: the first checkpoint needs {format_bytes(need['least_bytes'])} and does not fit",
                f"{_DISK_REMEDY}, or lower model.hidden",
                figures,
            )
        if need["total_bytes"] > free:
            return warning(
                "run folder",
                f"{found}: only the first checkpoints fit",
                f"{_DISK_REMEDY}, or lower checkpoint.keep",
                figures,
            )
    elif free < _LOW_BYTES:
        return warning("run folder", f"only {found}", _DISK_REMEDY, figures)
    return ok("run folder", found, figures)


# Maximum size of the source array: larger than the caches, but small enough for a container of 512 MiB.
_MAX_SOURCE_BYTES = 64 * 2**20
_MIN_SOURCE_BYTES = 4 * 2**20
# Rate below which loading is the bottleneck of every run: a gather from one old memory channel.
_SLOW_GB_S = 1.0
# Minimum fraction of the calibrated rate. Calibration uses wider rows on an idle machine, so it is faster.
_MIN_CALIBRATED_FRACTION = 0.4


def check_bandwidth(
    children: IsolatedWorker, limit_s: float, threads: int, available_bytes: int | None
) -> list[DoctorFinding]:
    """Measure copy and gather bandwidth in at most an eighth of `available_bytes`.

    No other check may run at the same time.
    """
    max_bytes = (
        _MAX_SOURCE_BYTES if available_bytes is None else min(_MAX_SOURCE_BYTES, available_bytes // 16)
    )
    answers = children.query(
        "hyrt.doctor.device_probes:probe_bandwidth",
        ["host"],
        limit_s=limit_s,
        threads=threads,
        num_bytes=max(_MIN_SOURCE_BYTES, max_bytes),
    )
    return evaluate_bandwidth(answers["host"], threads)


def evaluate_bandwidth(answer: Answer, threads: int) -> list[DoctorFinding]:
    """Return the findings about the measured bandwidth."""
    copy, gather, calibrated = (
        answer.first_value(key) for key in ("copy_gb_s", "gather_gb_s", "calibrated_gb_s")
    )
    figures = {"copy_gb_s": copy, "gather_gb_s": gather, "calibrated_gb_s": calibrated, "threads": threads}
    if answer.problem:
        return warning(
            "bandwidth",
            f"could not be measured: {answer.problem}",
            "see the lines on the packages and the kernel cache above",
            figures,
        )
    found = (
        f"copies {copy:.1f} GB/s (read and written), gathers rows at {gather:.1f} GB/s, "
        f"{threads} thread{'s' * (threads > 1)}"
    )
    if calibrated is not None and gather < _MIN_CALIBRATED_FRACTION * calibrated:
        remedy = (
            "stop other programs that use the memory, or run `hyrt calibrate` again if the "
            "machine has changed"
        )
        text = f"{found}; the calibration measured {calibrated:.1f} GB/s"
        return warning("bandwidth", text, remedy, figures)
    if gather < _SLOW_GB_S:
        remedy = "stop other programs on this machine; a container may have too little CPU time (see cpus)"
        return warning("bandwidth", f"only {found}", remedy, figures)
    return ok("bandwidth", found, figures)
