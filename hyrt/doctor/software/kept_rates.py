"""The user's cache folder, where measured rates and the calibration are kept."""

from __future__ import annotations

from pathlib import Path

from hyrt.doctor.finding import DoctorFinding, warning
from hyrt.doctor.machine.writable import why_not_writable
from hyrt.machine.kernel_cache import user_cache


def check_kept_rates(cache: Path | None = None) -> list[DoctorFinding]:
    """Whether what is measured can be kept.

    Parameters
    ----------
    cache
        The user's cache folder; XDG_CACHE_HOME or ~/.cache by default.
    """
    folder = (user_cache() if cache is None else cache) / "hyrt"
    problem = why_not_writable(folder)
    if problem:
        return warning(
            "kept rates",
            f"measured rates and the calibration cannot be stored: {problem}",
            "set XDG_CACHE_HOME to a writable folder",
            {"folder": str(folder)},
        )
    calibrated = any(folder.glob("calibration-*.yaml")) if folder.is_dir() else False
    found = str(folder) if calibrated else f"{folder}; `hyrt calibrate` lets runs start from a prediction"
    return [
        DoctorFinding(
            "kept rates",
            "ok" if calibrated else "note",
            found,
            figures={"folder": str(folder), "calibrated": calibrated},
        )
    ]
