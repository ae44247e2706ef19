"""Host memory: of the machine, of the control group, and against what the settings need."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyrt.doctor.finding import DoctorFinding, broken, ok, warning
from hyrt.machine.cores import cgroup_limits, memory_left, read_system_file
from hyrt.quantities import size

# What the smallest run takes: the interpreter with torch and numba, and its compiled kernels.
_LEAST_BYTES = 2**29
# Estimates were up to a third above the peaks of real runs, never much below: less than this part of one is
# too little.
_SURE = 0.7
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
    """Bytes."""

    total: int | None
    """The memory of the machine; None where nothing says so."""
    available: int | None
    """The memory that the machine could give now."""
    limit: int | None
    left: int | None
    """`limit` and `left`: of the control group, and what it leaves now; None without a limit."""

    @property
    def most(self) -> int | None:
        """What a process could have if it were alone."""
        return min((each for each in (self.total, self.limit) if each is not None), default=None)

    @property
    def now(self) -> int | None:
        """What a process could have now."""
        return min((each for each in (self.available, self.left) if each is not None), default=None)


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Read what the system says in the `proc` and `sys` below a root."""
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
    """What there is, and whether the settings' run fits.

    `need` has `total_bytes`, and by name what they are for; None where nothing was asked or it cannot be
    estimated.
    """
    figures = {
        "total_bytes": have.total,
        "available_bytes": have.available,
        "cgroup_limit_bytes": have.limit,
        "cgroup_left_bytes": have.left,
        "need": None if need is None else dict(need),
    }
    there = [] if have.now is None else [f"{size(have.now)} free"]
    there += [] if have.total is None else [f"of {size(have.total)}"]
    if have.limit is not None and (have.total is None or have.limit < have.total):
        there.append(f"with a control group's limit of {size(have.limit)}")
    found = " ".join(there) or "unknown on this system"
    wanted = _LEAST_BYTES if need is None else need["total_bytes"]
    remedy = _remedy(need or {})
    impossible = have.most is not None and _SURE * wanted > have.most
    tight = have.most is not None and wanted > have.most
    taken = have.now is not None and wanted > have.now
    if need is not None:
        found = f"{found}; the run needs about {itemized(need)}"
    elif tight or taken:
        found = f"{found}; the smallest run needs about {size(wanted)}"
    if impossible:
        return broken("memory", found, remedy, figures)
    if tight or taken:
        remedy = remedy if tight else f"stop whatever else uses memory, or {remedy}"
        return warning("memory", found, remedy, figures)
    return ok("memory", found, figures)


def _remedy(need: Mapping[str, Any]) -> str:
    """By what takes most."""
    copies = need.get("weights_bytes", 0) + need.get("checkpoint_bytes", 0)
    return _WEIGHTS_REMEDY if 2 * copies > need.get("total_bytes", 0) else _BATCHES_REMEDY


def itemized(need: Mapping[str, Any]) -> str:
    """`total_bytes`, and what it is for."""
    parts = ", ".join(
        f"{name.removesuffix('_bytes').replace('_', ' ')} {size(value)}"
        for name, value in need.items()
        if name not in ("total_bytes", "least_bytes") and value
    )
    return f"{size(need['total_bytes'])} ({parts})" if parts else size(need["total_bytes"])
