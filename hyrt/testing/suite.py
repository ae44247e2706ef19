"""Conformance suite of the device protocol."""

from __future__ import annotations

import inspect
import sys
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FrameType, ModuleType
from typing import get_args

from hyrt.checks import check_flag, check_int, check_number, check_type, show
from hyrt.device import Device, DeviceInfo, InputForm
from hyrt.device.calls import call_device
from hyrt.errors import ArgumentError, DeviceUnavailableError, one_line
from hyrt.testing import cases, check_capabilities, check_faults, check_protocol, check_sums
from hyrt.testing.trial import (
    CheckFailedError,
    CheckSkippedError,
    ConformanceError,
    OpenFn,
    Outcome,
    Report,
    Trial,
    Verdict,
)

_Work = Callable[[Trial], None]
_MAX_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Check:
    """Requirement on a device, with the check for it."""

    name: str
    """Text of the requirement."""
    run: _Work
    """Function that raises `CheckFailedError` or `CheckSkippedError`; other exceptions count as failures."""


def check_device(
    open_fn: OpenFn,
    *,
    computes: bool = True,
    break_next: Callable[[Device], None] | None = None,
    cycles: int = 200,
    limit_s: float = 120.0,
    only: str = "",
    on_verdict: Callable[[Verdict], None] | None = None,
) -> Report:
    """Check that a device follows the device protocol of `hyrt.device`.

    Every check runs on newly opened devices, regardless of the results of other checks. Only a check that
    hangs ends the suite.

    Parameters
    ----------
    open_fn
        Opens a new device with the passed options. Called some hundred times.
    computes
        False for a device that computes nothing: its sums are not checked.
    break_next
        Makes the next step of a device fail as its driver would; without it that check is skipped.
    cycles
        Number of cycles of the leak check, each of which opens and closes a device.
    limit_s
        Time limit of one check, in seconds.
    only
        Run only the checks whose names contain this text.
    on_verdict
        Called with each verdict as soon as it is known.

    Returns
    -------
    The verdicts, with reasons for skipped checks. `str()` of the report has one line per check.

    Raises
    ------
    ConformanceError
        If a check failed; the message lists all failures, and the error has the report.
    HyrtError
        If no device can be opened at all, or opening hangs.
    ValueError
        If no check's name contains `only`.
    """
    if not callable(open_fn):
        raise ArgumentError(f"open_fn is {show(open_fn)}: pass a function that opens a device with options")
    check_flag("computes", computes)
    check_int("cycles", cycles, 1)
    check_number("limit_s", limit_s, 0)
    check_type("only", only, str, "pass a part of the checks' names")
    chosen = [check for check in all_checks(computes=computes) if only in check.name]
    if not chosen:
        raise ValueError(f"no check has {only!r} in its name: use a part of a check's name")
    if cycles < 1:
        raise ValueError(f"cycles must be at least 1, got {cycles}")
    trial = Trial(open_fn, computes=computes, break_next=break_next, cycles=cycles)
    info = _first_info(trial, limit_s)
    verdicts: list[Verdict] = []
    for check in chosen:
        verdict = _run(check, trial, limit_s)
        verdicts.append(verdict)
        if on_verdict is not None:
            on_verdict(verdict)
        if verdict.seconds >= limit_s:
            break
    report = Report(f"{info.name} ({info.description})", tuple(verdicts))
    if report.failed:
        raise ConformanceError(report)
    return report


def _first_info(trial: Trial, limit_s: float) -> DeviceInfo:
    """Return the `info` of a device. Other checks find out whether it closes correctly."""
    device = call_device("the device", "open", trial.open, timeout_s=limit_s, fault=DeviceUnavailableError)
    # If a method is missing, its check reports this.
    if not isinstance(getattr(device, "info", None), DeviceInfo):
        kind = type(device).__name__
        raise DeviceUnavailableError(
            f"open_fn returned {kind}, expected a device: return an open device with a DeviceInfo as info"
        )
    with suppress(Exception):
        trial.close_all()
    return device.info


def all_checks(*, computes: bool) -> list[Check]:
    """Return the checks in order, without the checks of sums unless the device `computes`."""
    agreement = [
        Check(f"sums agree with float64: {case.name}", partial(check_sums.sums_agree_with_float64, case=case))
        for case in cases.model_cases()
    ]
    forms = [
        Check(
            f"input form {name} gives the same sums", partial(check_sums.input_form_gives_the_same, form=name)
        )
        for name in get_args(InputForm)
        # All other checks use rows, and heterogeneous mini-batches have separate checks.
        if name not in ("rows", "hetero")
    ]
    sums = [*agreement, *forms, *_checks_of(check_sums), *_checks_of(check_capabilities)] if computes else []
    return [*_checks_of(check_protocol), *sums, *_checks_of(check_faults)]


def _checks_of(module: ModuleType) -> list[Check]:
    """Return the public functions of a module whose only parameter is a trial, in source order."""
    return [
        Check(name.replace("_", " "), value)
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "") == module.__name__
        and list(inspect.signature(value).parameters) == ["trial"]
    ]


def _run(check: Check, trial: Trial, limit_s: float) -> Verdict:
    """Run a check on a separate thread, so that a hang becomes a verdict."""
    verdicts: list[Verdict] = []
    started = time.perf_counter()

    def seconds() -> float:
        return time.perf_counter() - started

    def work() -> None:
        outcome = _outcome(check, trial)
        verdicts.append(Verdict(check.name, *outcome, seconds()))

    thread = threading.Thread(target=work, name="hyrt.testing", daemon=True)
    thread.start()
    thread.join(limit_s)
    if verdicts:
        thread.join()
        return verdicts[0]
    frame = sys._current_frames().get(thread.ident or 0)
    frames = [] if frame is None else list(traceback.walk_stack(frame))[::-1]
    location = f" at {_source_line(frames, trial)}" if frames else ""
    return Verdict(
        check.name,
        "failed",
        f"expected the check to finish within {limit_s:g} s; it hangs{location}",
        limit_s,
    )


def _outcome(check: Check, trial: Trial) -> tuple[Outcome, str]:
    outcome = _result(check.run, trial)
    closing = _result(Trial.close_all, trial)
    # Report the first failure, which is the one to fix.
    return closing if closing[0] == "failed" and outcome[0] != "failed" else outcome


def _result(work: _Work, trial: Trial) -> tuple[Outcome, str]:
    try:
        work(trial)
    except CheckSkippedError as skipped:
        return "skipped", str(skipped)
    except CheckFailedError as failed:
        return "failed", str(failed)
    except BaseException as error:
        # A backend may raise anything. Each check runs on a thread, which never receives Ctrl-C.
        text = one_line(f"{type(error).__name__}: {error}")
        text = textwrap.shorten(text, _MAX_CHARACTERS, placeholder=" ...")
        return "failed", f"expected no exception; got {text}, at {_source_line(_frames(error), trial)}"
    return "passed", ""


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return the frames that lead to an error, or to its root cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return list(traceback.walk_tb(error.__traceback__))


def _source_line(frames: Sequence[tuple[FrameType, int]], trial: Trial) -> str:
    """Return the backend's innermost source line, or without one the innermost line of all code."""
    packages = {name.partition(".")[0] for name in trial.modules}
    backend_frames = [
        entry for entry in frames if entry[0].f_globals.get("__name__", "").partition(".")[0] in packages
    ]
    frame, line = (backend_frames or frames)[-1]
    return f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
