"""Check of numba's cache of compiled kernels: is it writable and intact?"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import Path

from hyrt.doctor.finding import DoctorFinding, broken, ok, warning
from hyrt.machine.child_processes.children import Answer, Children
from hyrt.quantities import size

# Prefix of the temporary folder that `hyrt.machine.kernels.kernel_cache` makes if no other folder is
# writable.
_TEMPORARY = "hyrt-kernels-"
_WRITABLE_REMEDY = "set NUMBA_CACHE_DIR to a writable folder that persists"
_FIRST_REMEDY = "first follow the lines on the packages above"
_MAX_SHOWN = 3


def check_kernel_cache(children: Children, limit_s: float) -> list[DoctorFinding]:
    """Read every cached kernel in the worker process, and write to its folder.

    If the first pass does not finish, a second pass checks the files' structure only. Each pass may take
    `limit_s` seconds.
    """
    answers = children.ask("hyrt.doctor.children.kernels:probe_kernel_cache", ["used"], limit_s=limit_s)
    if answers["used"].problem:
        answers |= children.ask(
            "hyrt.doctor.children.kernels:probe_kernel_cache", ["structure"], limit_s=limit_s
        )
    return judge_kernel_cache(answers, os.environ.get("NUMBA_CACHE_DIR"))


def judge_kernel_cache(answers: dict[str, Answer], chosen: str | None) -> list[DoctorFinding]:
    """Return findings for the answers of the two passes.

    Parameters
    ----------
    answers
        Answers of item `used`, and of item `structure` if `used` has a problem.
    chosen
        Value of NUMBA_CACHE_DIR.
    """
    used, structure = answers["used"], answers.get("structure", Answer())
    folders = {entry["folder"]: entry["problem"] for entry in used.said if "folder" in entry}
    damaged: dict[str, str] = dict(used.first("damaged") or {})
    if used.problem:
        damaged |= structure.first("damaged") or {}
    figures = {
        "folders": sorted(folders),
        "files": used.first("files"),
        "bytes": used.first("bytes"),
        "damaged": dict(sorted(damaged.items())),
        "problem": used.problem or structure.problem,
    }
    if damaged:
        names = sorted(damaged)
        rest = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
        found = f"{len(names)} damaged: {', '.join(names[:_MAX_SHOWN])}{rest} ({damaged[names[0]]})"
        if not used.problem:
            return warning("kernel cache", found, "nothing to do: the next run compiles them again", figures)
        # A kernel without its index is recompiled, so the whole folder may be deleted.
        return broken(
            "kernel cache", found, _removal_command({str(Path(name).parent) for name in names}), figures
        )
    problem = used.problem or structure.problem
    if problem:
        folders_to_clear = structure.first("places")
        remedy = _FIRST_REMEDY + (
            f"; otherwise {_removal_command(folders_to_clear)}" if folders_to_clear else ""
        )
        if "no locator available" in used.problem:
            remedy = _WRITABLE_REMEDY
        return broken("kernel cache", f"the kernels cannot be loaded: {problem}", remedy, figures)
    slow = ""
    unwritable = [problem for problem in folders.values() if problem]
    if chosen is not None and Path(chosen).name.startswith(_TEMPORARY):
        slow = "no folder for compiled kernels is writable, so every run compiles them again (half a minute)"
    elif unwritable:
        slow = f"{unwritable[0]}: kernels are compiled again in every run"
    elif chosen is not None and not any(
        Path(folder).is_relative_to(Path(chosen).absolute()) for folder in folders
    ):
        slow = f"NUMBA_CACHE_DIR={chosen} cannot be used; used instead: {_shorten(folders)}"
    if slow:
        return warning("kernel cache", slow, _WRITABLE_REMEDY, figures)
    found = (
        f"{figures['files']} files, {size(figures['bytes'] or 0)}, whole and writable: {_shorten(folders)}"
    )
    if not figures["files"]:
        found = f"empty and writable: {_shorten(folders)}; the first run compiles for half a minute"
    return ok("kernel cache", found, figures)


def _removal_command(folders: Iterable[str]) -> str:
    places = " ".join(shlex.quote(folder) + "/*.nb[ic]" for folder in sorted(folders))
    return f"rm {places}; the kernels are then compiled again"


def _shorten(folders: dict[str, str]) -> str:
    parent = os.path.commonpath(sorted(folders)) if folders else "nowhere"
    return parent if len(folders) < 2 else f"{len(folders)} folders in {parent}"
