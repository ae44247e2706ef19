"""Check of host memory: machine and cgroup, compared with the needs of the run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyrt.doctor.finding import DoctorFinding, broken, ok, warning
from hyrt.machine.cores import cgroup_limits, memory_left, read_system_file
from hyrt.quantities import size

# The smallest run: the interpreter with torch, numba and compiled kernels.
_MIN_RUN_BYTES = 2**29
# Estimates were up to a third above the measured peaks of runs, and never far below: less memory than this
# fraction of an estimate is certainly too little.
_CERTAIN_FRACTION = 0.7
_BATCHES_REMEDY = (
    "lower data.batch_size, sampler.fanout or runtime.depth; convert the data to a folder, which is "
    "memory-mapped (hyrt data convert); or give the machine or container more memory"
)
_WEIGHTS_REMEDY = (
    "lower model.hidden or model.layers: the weights, their gradients, the optimizer's moments and a "
    "checkpoint alone take most of it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Host memory in bytes."""

    total: int | None
    """Memory of the machine; None if unknown."""
    available: int | None
    """Memory that is currently available on the machine."""
    limit: int | None
    left: int | None
    """`limit`: memory limit of the cgroup; `left`: its unused part. None without a limit."""

    @property
    def most(self) -> int | None:
        """Return the memory that a process could use on an idle machine."""
        return min((limit for limit in (self.total, self.limit) if limit is not None), default=None)

    @property
    def now(self) -> int | None:
        """Return the memory that a process can use at present."""
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
        left=memory_left(membership, groups),
    )


def check_memory(have: HostMemory, need: Mapping[str, Any] | None) -> list[DoctorFinding]:
    """Report the available memory, and whether the run fits.

    `need` has `total_bytes` and bytes by purpose; None if unknown.
    """
    figures = {
        "total_bytes": have.total,
        "available_bytes": have.available,
        "cgroup_limit_bytes": have.limit,
        "cgroup_left_bytes": have.left,
        "need": None if need is None else dict(need),
    }
    parts = [] if have.now is None else [f"{size(have.now)} free"]
    parts += [] if have.total is None else [f"of {size(have.total)}"]
    if have.limit is not None and (have.total is None or have.limit < have.total):
        parts.append(f"with a control group's limit of {size(have.limit)}")
    found = " ".join(parts) or "unknown on this system"
    needed = _MIN_RUN_BYTES if need is None else need["total_bytes"]
    remedy = _memory_remedy(need or {})
    impossible = have.most is not None and _CERTAIN_FRACTION * needed > have.most
    tight = have.most is not None and needed > have.most
    occupied = have.now is not None and needed > have.now
    if need is not None:
        found = f"{found}; the run needs about {itemized(need)}"
    elif tight or occupied:
        found = f"{found}; the smallest run needs about {size(needed)}"
    if impossible:
        return broken("memory", found, remedy, figures)
    if tight or occupied:
        remedy = remedy if tight else f"stop whatever else uses memory, or {remedy}"
        return warning("memory", found, remedy, figures)
    return ok("memory", found, figures)


def _memory_remedy(need: Mapping[str, Any]) -> str:
    """Choose the remedy by the largest consumer."""
    copies = need.get("weights_bytes", 0) + need.get("checkpoint_bytes", 0)
    return _WEIGHTS_REMEDY if 2 * copies > need.get("total_bytes", 0) else _BATCHES_REMEDY


def itemized(need: Mapping[str, Any]) -> str:
    """Format `total_bytes` with its parts by purpose."""
    parts = ", ".join(
        f"{name.removesuffix('_bytes').replace('_', ' ')} {size(value)}"
        for name, value in need.items()
        if name not in ("total_bytes", "least_bytes") and value
    )
    return f"{size(need['total_bytes'])} ({parts})" if parts else size(need["total_bytes"])
