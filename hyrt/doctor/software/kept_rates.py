"""The user's cache folder, where measured rates and the calibration are kept."""

from __future__ import annotations

from pathlib import Path

from hyrt_perfmodel.user_cache import user_cache

from hyrt.doctor.finding import DoctorFinding, note, ok, warning
from hyrt.doctor.machine.writable import why_not_writable
from hyrt.machine.child_processes.children import Answer, Children

_REST = "after `hyrt calibrate`, runs start from a prediction"


def check_kept_rates(children: Children, limit_s: float) -> list[DoctorFinding]:
    """Whether what is measured can be kept, and what has been."""
    answers = children.ask("hyrt.doctor.children.kept_rates", ["rates"], limit_s=limit_s)
    return judge_kept_rates(answers["rates"], user_cache() / "hyrt")


def judge_kept_rates(answer: Answer, folder: Path) -> list[DoctorFinding]:
    """A finding from what is kept in the folder."""
    devices, why = answer.first("devices") or [], answer.first("why") or ""
    calibrated = bool(answer.first("calibrated"))
    figures = {"folder": str(folder), "calibrated": calibrated, "devices": devices}
    problem = why_not_writable(folder)
    if problem:
        found = f"measured rates and the calibration cannot be stored: {problem}"
        return warning("kept rates", found, "set XDG_CACHE_HOME to a writable folder", figures)
    if calibrated:
        return ok("kept rates", f"{folder}: this machine is calibrated", figures)
    if why:
        return note("kept rates", f"{folder}: {why}", figures)
    if devices:
        measured = f"the rates of {', '.join(devices)} were measured, but this machine is not calibrated"
        return note("kept rates", f"{folder}: {measured}: {_REST}", figures)
    return note("kept rates", f"{folder}: {answer.problem or f'not calibrated: {_REST}'}", figures)
