"""What counts as a hang, on a clock of the test's own; and what the system says of real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hyrt.runtime.isolated_worker import (
    BUSY_FACTOR,
    POLL_INTERVAL_S,
    HangDetector,
    ProcessActivity,
    read_activity,
)

LIMIT_S = 10.0


def hangs_after(
    activity: Callable[[float], ProcessActivity | None], step_s: float = POLL_INTERVAL_S
) -> tuple[float, str]:
    """Seconds till a watch with a limit of 10 s speaks, and what it says."""
    now = [0.0]
    watch = HangDetector(LIMIT_S, lambda: activity(now[0]), lambda: now[0])
    while now[0] < 100 * LIMIT_S:
        now[0] += step_s
        why = watch.check()
        if why:
            return now[0], why
    return now[0], ""


@pytest.mark.parametrize("said", [None, ProcessActivity(3.0)], ids=["nothing is known", "it waits"])
def test_waiting_counts_at_once(said: ProcessActivity | None) -> None:
    assert hangs_after(lambda now: said) == (LIMIT_S, "hangs: no answer within 10 s")


def test_the_ticking_of_a_thread_that_waits_is_no_work() -> None:
    assert hangs_after(lambda now: ProcessActivity(0.02 * now))[0] == pytest.approx(
        LIMIT_S, abs=2 * POLL_INTERVAL_S
    )


@pytest.mark.parametrize(
    "activity",
    [
        lambda now: ProcessActivity(0.3 * now),
        lambda now: ProcessActivity(0.0, is_ready=True),
        lambda now: ProcessActivity(0.0, pages_read=int(10 * now)),
    ],
    ids=["a third of a processor", "starved", "libraries from a slow disk"],
)
def test_computing_and_starving_take_longer(activity: Callable[[float], ProcessActivity]) -> None:
    after, why = hangs_after(activity)
    assert after == pytest.approx(BUSY_FACTOR * LIMIT_S, abs=2 * POLL_INTERVAL_S)
    assert why == "hangs: computes, but gives no answer within 50 s"


def test_waiting_and_computing_count_together() -> None:
    # It waits for the first 8 of the 10 s that it may, then computes.
    after, why = hangs_after(lambda now: ProcessActivity(max(0.0, now - 8.0), is_ready=now > 8.0))
    assert after == pytest.approx(BUSY_FACTOR * LIMIT_S, abs=2 * POLL_INTERVAL_S)
    assert why == "hangs: computes, but gives no answer within 50 s"


def test_what_is_stopped_does_not_hang() -> None:
    assert hangs_after(lambda now: ProcessActivity(0.0, is_stopped=True))[1] == ""


def test_a_pause_of_the_doctor_itself_counts_a_second() -> None:
    assert hangs_after(lambda now: ProcessActivity(0.0), step_s=60.0)[0] == LIMIT_S * 60


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="asks Linux")
def test_real_processes() -> None:
    texts = {
        "waits": "import time\ntime.sleep(60)",
        "works": "while True: pass",
        "waits for one that works": (
            "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])"
        ),
    }
    for name, text in texts.items():
        process = subprocess.Popen([sys.executable, "-c", text], start_new_session=True)
        try:
            end = time.monotonic() + 20
            ready = []
            # The first moments are the interpreter's start.
            while time.monotonic() < end and (len(ready) < 12 or ("works" in name and not any(ready[6:]))):
                time.sleep(0.1)
                activity = read_activity(process.pid)
                assert activity is not None
                ready.append(activity.is_ready)
            assert any(ready[-6:]) == ("works" in name), name
            process.send_signal(signal.SIGSTOP)
            while not (activity := read_activity(process.pid)) or not activity.is_stopped:
                assert time.monotonic() < end
                time.sleep(0.01)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert read_activity(process.pid) is None


def test_a_session_is_stopped_only_if_its_leader_is(tmp_path: Path) -> None:
    """From files like those of Linux: a leader, one that it started, and one of another session."""

    def write(pid: int, state: str, session: int, ticks: int) -> None:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        # Terminal, its group, flags; faults of it and its children: 8 and 9 without a disk, 5 and 6 with one.
        rest = ["0", "0", "0", "8", "9", "5", "6", str(ticks), "0"]
        text = " ".join([str(pid), "(a ) b)", state, "1", str(session), str(session), *rest, "0"])
        (tmp_path / str(pid) / "stat").write_text(text)

    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    write(10, "S", 10, 3)
    write(11, "T", 10, 4)
    write(12, "R", 12, 50)
    found = read_activity(10, tmp_path)
    assert found is not None
    assert (found.is_ready, found.is_stopped) == (False, False)
    assert found.cpu_s == pytest.approx(7 * tick_s)
    write(11, "R", 10, 4)
    assert read_activity(10, tmp_path) == ProcessActivity(7 * tick_s, is_ready=True, pages_read=5)
    write(10, "T", 10, 3)
    assert read_activity(10, tmp_path) == ProcessActivity(3 * tick_s, is_stopped=True, pages_read=5)
