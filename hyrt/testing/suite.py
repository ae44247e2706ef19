"""The conformance suite: every check, one after the other."""

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

from hyrt.checks import check_flag, check_kind, check_number, check_whole, show
from hyrt.device import Device, DeviceInfo, InputForm
from hyrt.device.calls import call_device
from hyrt.errors import ArgumentError, DeviceUnavailable, one_line
from hyrt.testing import (
    cases,
    check_faults,
    check_form,
    check_leaks,
    check_results,
    check_sampler,
    check_sums,
    check_threads,
)
from hyrt.testing.trial import OpenFn, Trial
from hyrt.testing.typed import check_typed
from hyrt.testing.verdicts import ConformanceError, Failed, Outcome, Report, Skipped, Verdict

_Work = Callable[[Trial], None]
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Check:
    """One demand on a device."""

    name: str
    """What is demanded."""
    run: _Work
    """Raises `Failed` or `Skipped`; any other exception is a failure too."""


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

    Every check runs, on devices of its own, whatever the others find; only a check that hangs ends the suite.

    Parameters
    ----------
    open_fn
        Opens a fresh device with the options it is given. Called some hundred times.
    computes
        False for a device that computes nothing: what its sums are is not looked at.
    break_next
        Makes the next step of a device fail as its driver would, where the backend has a way to; else that
        check is skipped.
    cycles
        How often the check for leaks opens and closes a device.
    limit_s
        Seconds that one check may take.
    only
        Run the checks whose names have this in them.
    on_verdict
        Called with each verdict as it is made.

    Returns
    -------
    What was checked, and what was skipped and why. `str()` of it is a line each.

    Raises
    ------
    ConformanceError
        If a check failed; it lists all that did, and has the report.
    HyrtError
        If no device can be opened at all, or opening hangs.
    ValueError
        If no check's name has `only` in it.
    """
    if not callable(open_fn):
        raise ArgumentError(f"open_fn is {show(open_fn)}: give a function that opens a device with options")
    check_flag("computes", computes)
    check_whole("cycles", cycles, 1)
    check_number("limit_s", limit_s, 0)
    check_kind("only", only, str, "give words of the names of checks")
    chosen = [check for check in all_checks(computes=computes) if only in check.name]
    if not chosen:
        raise ValueError(f"no check has {only!r} in its name")
    if cycles < 1:
        raise ValueError(f"cycles is {cycles}: give at least 1")
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
    """What an opened device says of itself. Whether it closes well is for the checks."""
    device = call_device("the device", "open", trial.open, timeout_s=limit_s, fault=DeviceUnavailable)
    # A call that is missing is for a check to find.
    if not isinstance(getattr(device, "info", None), DeviceInfo):
        raise DeviceUnavailable(f"what open returned is {type(device).__name__}: not a device")
    with suppress(Exception):
        trial.close_all()
    return device.info


def all_checks(*, computes: bool) -> list[Check]:
    """The checks, in their order.

    Parameters
    ----------
    computes
        Whether the device's sums are looked at.
    """
    agreement = [
        Check(f"sums agree with float64: {case.name}", partial(check_sums.sums_agree_with_float64, case=case))
        for case in cases.model_cases()
    ]
    forms = [
        Check(
            f"input form {name} gives the same sums", partial(check_sums.input_form_gives_the_same, form=name)
        )
        for name in get_args(InputForm)
        # Typed mini-batches have checks of their own.
        if name not in ("rows", "typed")
    ]
    sums = (
        [*agreement, *forms, *_checks_of(check_sums), *_checks_of(check_typed), *_checks_of(check_sampler)]
        if computes
        else []
    )
    first = [check for room in (check_form, check_results, check_threads) for check in _checks_of(room)]
    return [*first, *sums, *_checks_of(check_faults), *_checks_of(check_leaks)]


def _checks_of(module: ModuleType) -> list[Check]:
    """Every public function of a module that takes a trial and nothing else, in the order of the text."""
    return [
        Check(name.replace("_", " "), value)
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "") == module.__name__
        and list(inspect.signature(value).parameters) == ["trial"]
    ]


def _run(check: Check, trial: Trial, limit_s: float) -> Verdict:
    """Run one check on a thread of its own: a device that hangs is a verdict too."""
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
    at = f"; it is at {_place(frames, trial)}" if frames else ""
    return Verdict(check.name, "failed", f"expected it to end within {limit_s:g} s; it hangs{at}", limit_s)


def _outcome(check: Check, trial: Trial) -> tuple[Outcome, str]:
    outcome = _result(check.run, trial)
    closing = _result(Trial.close_all, trial)
    # What failed first is what the author needs to read.
    return closing if closing[0] == "failed" and outcome[0] != "failed" else outcome


def _result(work: _Work, trial: Trial) -> tuple[Outcome, str]:
    try:
        work(trial)
    except Skipped as skipped:
        return "skipped", str(skipped)
    except Failed as failed:
        return "failed", str(failed)
    except BaseException as error:  # A backend may raise anything, anywhere; this is the check's own thread.
        told = one_line(f"{type(error).__name__}: {error}")
        told = textwrap.shorten(told, _LONGEST, placeholder=" ...")
        return "failed", f"expected no exception; got {told}, at {_place(_frames(error), trial)}"
    return "passed", ""


def _frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """The way to an error, or to its first cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return list(traceback.walk_tb(error.__traceback__))


def _place(frames: Sequence[tuple[FrameType, int]], trial: Trial) -> str:
    """The backend's innermost line; where it has none, the innermost one."""
    packages = {name.partition(".")[0] for name in trial.modules}
    own = [each for each in frames if each[0].f_globals.get("__name__", "").partition(".")[0] in packages]
    frame, line = (own or frames)[-1]
    return f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
