"""What is said of devices when a process has ended inside their calls, or outside."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import os, threading
from hyrt.telemetry.hooks import Site
from hyrt.telemetry.run_hooks import CrashContext

# As many files as a run has open: a plain shell duplicates descriptors of one digit only.
held = [open(os.devnull) for _ in range(12)]
hook = CrashContext([1])
hook.on_start([], range(9))
call = lambda stage, work, trainer=1: hook.wrap_call(stage, Site(f"odd:{trainer}", 7, trainer, 0, 1), work)
call("propagate", lambda: None)
"""


def said(text: str) -> list[str]:
    """The lines of a process on standard error."""
    done = subprocess.run([sys.executable, "-c", START + text], capture_output=True, text=True, timeout=60)
    return done.stderr.splitlines()


@pytest.mark.parametrize("ending", ["os.abort()", "os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_the_call_in_which_the_process_ended_is_named(ending: str) -> None:
    (line,) = said(f"call('propagate', lambda: {ending})")
    assert line.startswith(
        "hyrt: the process ended during propagate of odd:1 at step 7, and unless you stopped it"
    )


def test_calls_at_the_same_time_are_all_named() -> None:
    lines = said("call('transfer', lambda: call('update', os.abort))")
    assert [line.split()[5] for line in lines] == ["transfer", "update"]


@pytest.mark.parametrize(
    "ending",
    [
        "os._exit(3)",
        "call('propagate', os.abort, trainer=0)",
        "call('load', os.abort)",
        "hook.on_end({}); call('propagate', os.abort)",
        "call('propagate', lambda: (hook.on_failure(ValueError(), {}), os._exit(1)))",
        "call('propagate', lambda: (hook.on_abort(), os._exit(1)))",
    ],
)
def test_nothing_is_said_of_an_end_elsewhere(ending: str) -> None:
    assert said(ending) == []


def test_an_error_leaves_the_call() -> None:
    assert (
        said("try:\n    call('propagate', lambda: 1 / 0)\nexcept ZeroDivisionError:\n    os._exit(1)") == []
    )
