"""Check of the host memory bandwidth."""

from __future__ import annotations

from hyrt.doctor.finding import DoctorFinding, ok, warning
from hyrt.machine.child_processes.children import Answer, Children

# Larger than the caches, but small enough for a container with half a gigabyte of memory.
_MAX_SOURCE_BYTES = 64 * 2**20
_MIN_SOURCE_BYTES = 4 * 2**20
# Below this rate (a gather from one old memory channel), loading bounds every run.
_SLOW_GB_S = 1.0
# Calibration uses wider rows on an idle machine, so a lower rate than this fraction is unexpected.
_MIN_CALIBRATED_FRACTION = 0.4


def check_bandwidth(
    children: Children, limit_s: float, threads: int, memory_now: int | None
) -> list[DoctorFinding]:
    """Measure copy and gather bandwidth with `threads` threads while no other check runs.

    Uses at most an eighth of `memory_now`, the available memory in bytes.
    """
    max_bytes = _MAX_SOURCE_BYTES if memory_now is None else min(_MAX_SOURCE_BYTES, memory_now // 16)
    answers = children.ask(
        "hyrt.doctor.children.bandwidth",
        ["host"],
        limit_s=limit_s,
        threads=threads,
        num_bytes=max(_MIN_SOURCE_BYTES, max_bytes),
    )
    return judge_bandwidth(answers["host"], threads)


def judge_bandwidth(answer: Answer, threads: int) -> list[DoctorFinding]:
    """Return findings for the measured bandwidth."""
    copy, gather, calibrated = (answer.first(key) for key in ("copy_gb_s", "gather_gb_s", "calibrated_gb_s"))
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
            "stop whatever else uses the memory, or run `hyrt calibrate` again if the machine has changed"
        )
        text = f"{found}; when it was calibrated, it gathered at {calibrated:.1f} GB/s"
        return warning("bandwidth", text, remedy, figures)
    if gather < _SLOW_GB_S:
        remedy = "stop whatever else uses the machine; a container may have too little CPU time (see cpus)"
        return warning("bandwidth", f"only {found}", remedy, figures)
    return ok("bandwidth", found, figures)
