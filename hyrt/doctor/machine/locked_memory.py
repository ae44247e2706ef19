"""Check of RLIMIT_MEMLOCK: how much memory a driver may pin for copies to a device."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from pathlib import Path

from hyrt.doctor.finding import DoctorFinding, ok, warning
from hyrt.machine.cores import read_system_file
from hyrt.quantities import size

_CAP_IPC_LOCK = 1 << 14
# Two staged mini-batches of the default size, 25 MB each, rounded up; used without settings.
_DEFAULT_BYTES = 64 * 2**20


def check_locked_memory(
    devices: Sequence[str],
    need_bytes: float | None,
    *,
    limits: tuple[int, int] | None = None,
    status: Path = Path("/proc/self/status"),
) -> list[DoctorFinding]:
    """Compare the limit with the data that devices with separate memory receive per step.

    Parameters
    ----------
    devices
        Names of the devices with separate memory.
    need_bytes
        Size of their mini-batches in flight; None if unknown.
    limits
        Soft and hard limit; read from the system by default.
    status
        File with the process status, including its capabilities.
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
    found = f"at most {size(soft)} may be pinned"
    if exempt:
        return ok("locked memory", f"{found}, but this process is exempt (CAP_IPC_LOCK)", figures)
    if not devices:
        text = f"{found}; no device here has memory of its own, so no locked memory is needed"
        return ok("locked memory", text, figures)
    if need <= soft:
        text = f"{found}; a run stages about {size(need)}"
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
            f"{found}; {', '.join(devices)} stage about {size(need)}: a driver that counts pinned pages "
            "refuses them, or copies twice"
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
