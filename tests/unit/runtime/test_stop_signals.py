"""In processes of their own: a signal changes the whole process."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

# The main thread is in compiled code, as in a kernel (which unlike sleep goes on after a signal).
BUSY = "import ctypes\n    while True: ctypes.CDLL(None).sleep(60)"
HEAD = "from hyrt.runtime.shutdown import StopSignals\nwith StopSignals(grace_s=0.5) as signals:\n    "
WAITING = "signals.defer_to_step_end(lambda text: print(text, flush=True), lambda: 'last words')\n    "


def start(code: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", f"{HEAD}{code}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU])
def test_before_training_the_first_one_ends_the_process(number: signal.Signals) -> None:
    process = start(f"print('ready', flush=True)\n    {BUSY}")
    process.send_signal(number)
    assert process.communicate(timeout=5) == ("", "interrupted before the run began\n")
    assert process.returncode == 128 + number


def test_without_an_end_of_the_step_the_process_leaves() -> None:
    process = start(f"{WAITING}print('ready', flush=True)\n    {BUSY}")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=5)
    assert output == "stopping after this step ... (press Ctrl-C again to exit at once)\n"
    assert errors == "last words\n"
    assert process.returncode == 143


def test_a_second_one_leaves_at_once() -> None:
    process = start(f"signals._grace_s = 60; {WAITING}print('ready', flush=True)\n    {BUSY}")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("stopping")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=5) == ("", "last words\n")
    assert process.returncode == 130


def test_those_of_batch_systems_may_come_again() -> None:
    """The system sends SIGXCPU for each second of CPU time beyond the limit."""
    process = start(f"signals._grace_s = 60; {WAITING}print('ready', flush=True)\n    {BUSY}")
    process.send_signal(signal.SIGXCPU)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("stopping after this step")
    for number in (signal.SIGXCPU, signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=5) == ("", "last words\n")
    assert process.returncode == 143


def test_a_requested_stop_ends_regularly_and_later_signals_change_nothing() -> None:
    code = (
        f"{WAITING}print('ready', flush=True)\n"
        "    import time\n    while not signals.requested: time.sleep(0.01)\n"
        "import os, signal, sys\nos.kill(os.getpid(), signal.SIGINT)\nsys.exit(signals.exit_code)"
    )
    process = start(code)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=5)[1] == ""
    assert process.returncode == 130


def test_what_is_ignored_before_stays_so() -> None:
    """As under nohup, or after a shell's `trap '' USR1`."""
    code = (
        "import signal\nfor number in (signal.SIGHUP, signal.SIGUSR1):\n"
        "    signal.signal(number, signal.SIG_IGN)\n"
        f"{HEAD}{WAITING}import os, signal\n    os.kill(os.getpid(), signal.SIGHUP)\n"
        "    os.kill(os.getpid(), signal.SIGUSR1)\n    assert not signals.requested"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_a_signal_everything_is_as_before() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    from hyrt.runtime.shutdown import StopSignals

    with StopSignals() as signals:
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert not signals.requested
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
