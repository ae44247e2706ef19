"""Check of the user's cache folder, which stores measured rates and the calibration."""

from __future__ import annotations

from pathlib import Path

from hyrt_perfmodel.user_cache import user_cache

from hyrt.doctor.finding import DoctorFinding, note, ok, warning
from hyrt.doctor.machine.writable import why_not_writable
from hyrt.machine.child_processes.children import Answer, Children

_CALIBRATE_HINT = "after `hyrt calibrate`, runs start from a prediction"


def check_kept_rates(children: Children, limit_s: float) -> list[DoctorFinding]:
    """Check whether measurements can be stored, and which are stored."""
    answers = children.ask("hyrt.doctor.children.kept_rates:probe_calibration", ["rates"], limit_s=limit_s)
    return judge_kept_rates(answers["rates"], user_cache() / "hyrt")


def judge_kept_rates(answer: Answer, folder: Path) -> list[DoctorFinding]:
    """Return a finding for the folder's measurements."""
    devices, reason = answer.first("devices") or [], answer.first("why") or ""
    calibrated = bool(answer.first("calibrated"))
    figures = {"folder": str(folder), "calibrated": calibrated, "devices": devices}
    problem = why_not_writable(folder)
    if problem:
        found = f"measured rates and the calibration cannot be stored: {problem}"
        return warning("kept rates", found, "set XDG_CACHE_HOME to a writable folder", figures)
    if calibrated:
        return ok("kept rates", f"{folder}: this machine is calibrated", figures)
    if reason:
        return note("kept rates", f"{folder}: {reason}", figures)
    if devices:
        measured = f"the rates of {', '.join(devices)} were measured, but this machine is not calibrated"
        return note("kept rates", f"{folder}: {measured}: {_CALIBRATE_HINT}", figures)
    return note("kept rates", f"{folder}: {answer.problem or f'not calibrated: {_CALIBRATE_HINT}'}", figures)
