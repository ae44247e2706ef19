"""Opening, loading and closing devices that fail or hang."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from hyrt.device.calls import call_device
from hyrt.errors import DeviceFaultError, DeviceUnavailableError, StallError


def test_the_answer_comes_through() -> None:
    assert call_device("npu:0", "open", lambda: 7, timeout_s=5, fault=DeviceUnavailableError) == 7
    assert call_device("npu:0", "close", lambda: None, timeout_s=5, fault=DeviceFaultError) is None


def test_what_is_not_hyrts_gets_the_devices_name() -> None:
    def fail() -> None:
        raise RuntimeError("no\npower")

    says = r"npu:0: open failed \(RuntimeError: no power\)"
    with pytest.raises(DeviceUnavailableError, match=f"^{says}$") as caught:
        call_device("npu:0", "open", fail, timeout_s=5, fault=DeviceUnavailableError)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(DeviceUnavailableError, match=f"^{says}: restart it$"):
        call_device("npu:0", "open", fail, timeout_s=5, fault=DeviceUnavailableError, remedy="restart it")


def test_hyrts_own_errors_stay() -> None:
    def fail() -> None:
        raise DeviceUnavailableError("npu:0 is in use")

    with pytest.raises(DeviceUnavailableError, match=r"^npu:0 is in use$"):
        call_device("npu:0", "load", fail, timeout_s=5, fault=DeviceFaultError)


def test_hyrts_own_errors_get_the_devices_name_where_they_lack_it() -> None:
    def fail() -> None:
        raise DeviceUnavailableError("busy")

    with pytest.raises(DeviceUnavailableError, match=r"^npu:0: busy$"):
        call_device("npu:0", "open", fail, timeout_s=5, fault=DeviceFaultError)


def test_a_call_that_hangs_ends_the_wait() -> None:
    free = threading.Event()
    try:
        with pytest.raises(StallError, match=r"npu:0: open did not finish within 0.05 s"):
            call_device("npu:0", "open", free.wait, timeout_s=0.05, fault=DeviceUnavailableError)
    finally:
        free.set()


def test_time_in_which_the_process_was_stopped_does_not_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock that `join` waits by goes on meanwhile; what is left of the call goes on only afterwards."""
    free = threading.Event()
    join = threading.Thread.join
    waits: list[float | None] = []

    def stopped_at_first(self: threading.Thread, timeout: float | None = None) -> None:
        waits.append(timeout)
        if len(waits) > 1:
            free.set()
            join(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", stopped_at_first)
    assert call_device("npu:0", "open", free.wait, timeout_s=9, fault=DeviceUnavailableError) is True
    assert len(waits) > 1
    assert sum(wait or 0 for wait in waits) <= 9


def said(script: str) -> list[str]:
    """The lines of a process on standard error that are about its end."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    return [line for line in done.stderr.splitlines() if line.startswith("hyrt: ")]


CALL = """
import os
from hyrt.device.calls import call_device
from hyrt.errors import DeviceFaultError

call = lambda name, doing, work: call_device(name, doing, work, fault=DeviceFaultError)
call("npu:0", "open", lambda: None)
"""


@pytest.mark.parametrize("ending", ["os.abort", "lambda: os._exit(3)", "lambda: os.kill(os.getpid(), 11)"])
def test_a_call_in_which_the_process_ends_is_named(ending: str) -> None:
    (line,) = said(f"{CALL}call('npu:0', 'load', {ending})")
    assert line.startswith(
        "hyrt: the process ended during load of npu:0, and unless you stopped it, the backend or"
    )


@pytest.mark.parametrize("ending", ["os._exit(3)", "call('cpu:0', 'open', lambda: os._exit(3))"])
def test_nothing_is_said_of_an_end_elsewhere(ending: str) -> None:
    assert said(CALL + ending) == []


def test_a_run_names_the_device_that_ends_its_process() -> None:
    """Runs that are forked from one process, which has imported what they need."""
    script = (
        "import os, hyrt, hyrt.training.build_run\n"
        "from hyrt_devices.null import NullDevice\n"
        "for doing in ('open', 'load', 'close'):\n"
        "    run = os.fork()\n"
        "    if run == 0:\n"
        "        setattr(NullDevice, doing, lambda *ignored: os.abort())\n"
        "        data = 'synthetic:tiny,vertices=100,edges=400'\n"
        "        hyrt.train(data, devices='null:0', train={'epochs': 1})\n"
        "        os._exit(0)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]) == -6, doing\n"
        "os._exit(3)"
    )
    lines = sorted(line.split(":")[1].strip() for line in said(script))
    assert lines == [f"the process ended during {doing} of null" for doing in ("close", "load", "open")]
