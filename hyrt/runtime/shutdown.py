"""End of the process: stop signals, exits while threads are running, and reports of unexpected exits."""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import NoReturn, Self

# A line from the process means success. End of file without a line means that the process has died.
_MONITOR_SCRIPT = 'read -r over || printf "%s\\n" "$1" >&2'


@contextmanager
def report_unexpected_exit(text: str) -> Iterator[None]:
    """Print a line on standard error if the process ends within the block.

    A library may end the process in ways that no handler sees: `_exit`, a signal, a crash in a destructor. A
    shell at the other end of a pipe detects every exit and starts in a few milliseconds, whereas a second
    Python process would have to import everything again.
    """
    try:
        monitor = subprocess.Popen(
            ["sh", "-c", _MONITOR_SCRIPT, "sh", text], stdin=subprocess.PIPE, start_new_session=True
        )
    except OSError:  # There is no shell. Continue, since the message is optional.
        yield
        return
    try:
        yield
    finally:
        monitor.communicate(b"\n")


@contextmanager
def exit_cleanly() -> Iterator[None]:
    """Exit with the block's exit code even if daemon threads are still running.

    At interpreter exit, Python unwinds threads that return from torch or a driver. Their C++ code does not
    support this: the process would abort with "terminate called without an active exception" (exit code 134).
    """
    try:
        yield
    except SystemExit as ending:
        code = 0 if ending.code is None else ending.code
        if isinstance(code, int) and _has_live_threads():
            _end_now(code)
        raise


@contextmanager
def report_os_exit() -> Iterator[None]:
    """Report `os._exit` calls of other packages in the block in one line, and replace their exit code 0 by 1.

    Otherwise a plug-in that calls `os._exit` would end a run as if it had succeeded. Forked child processes
    are not affected. Exits inside C libraries are not detected.
    """
    original, pid = os._exit, os.getpid()

    def reporting_exit(status: int) -> NoReturn:
        frame = sys._getframe(1)
        if os.getpid() == pid and frame.f_globals.get("__name__", "").partition(".")[0] != "hyrt":
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            line = (
                f"error: os._exit({status}) was called at {place}, which ends the command before it is done: "
                "raise an exception there, or run without the package that it belongs to\n"
            )
            with suppress(OSError):
                os.write(2, line.encode(errors="backslashreplace"))
            status = status or 1
        original(status)

    os._exit = reporting_exit
    try:
        yield
    finally:
        os._exit = original


def _has_live_threads() -> bool:
    this_thread = threading.current_thread()
    return any(thread.daemon and thread is not this_thread for thread in threading.enumerate())


def _end_now(code: int) -> NoReturn:
    """Do what the interpreter does at exit, except finalizing itself."""
    try:
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.main_thread():
                thread.join()
        # For example, atexit functions remove temporary files. No public function runs all of them.
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
    finally:
        os._exit(code)


# Batch systems send these signals before they kill a job, and SIGXCPU again for each second of CPU time.
_NOTICES = (signal.SIGXCPU, signal.SIGUSR1, signal.SIGUSR2)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *_NOTICES)
"""Signals that stop a run, sent by users or by batch systems."""
_NEVER_IGNORED = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = b"\r\x1b[?25h\x1b[K"
_EARLY_MESSAGE = "interrupted before the run began"


class StopSignals:
    """Listener for `STOP_SIGNALS` on a separate thread, as a context manager for the main thread.

    SIGHUP is sent when a terminal closes. If SIGHUP or a batch system's signal is ignored, as under nohup, it
    remains ignored. Python runs signal handlers between two bytecodes of the main thread, which may spend
    minutes in a compiled kernel. The thread reads signal numbers from a socket instead, and acts at once.
    During training, the process ends at most `grace_s` seconds after the first signal.
    """

    def __init__(self, grace_s: float = 8.5) -> None:
        self._grace_s = grace_s
        self._first = 0
        self._announce: Callable[[str], None] | None = None
        self._exit_message: Callable[[], str] = lambda: _EARLY_MESSAGE
        self._deadline: float | None = None
        self._closing = False

    @property
    def requested(self) -> bool:
        return self._first != 0

    @property
    def first_signal(self) -> int:
        """Number of the first received signal, or 0."""
        return self._first

    @property
    def exit_code(self) -> int:
        """Exit code of a process that ends by the first signal: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self._first

    def defer_to_step_end(self, announce: Callable[[str], None], exit_message: Callable[[], str]) -> None:
        """Make the first signal only set `requested` from now on.

        `announce` is then called with the message that the current step will be finished first.
        `exit_message` returns the message to print if the process exits before the step has ended: after the
        grace time, or at a second signal other than the batch systems' signals.
        """
        self._exit_message = exit_message
        self._announce = announce

    def __enter__(self) -> Self:
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._descriptor_before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._handlers_before = {
            number: signal.signal(number, _ignore_signal)
            for number in STOP_SIGNALS
            if number in _NEVER_IGNORED or signal.getsignal(number) != signal.SIG_IGN
        }
        self._thread = threading.Thread(target=self._listen, name="hyrt.signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._handlers_before.items():
            # The process is about to end, and another signal must not change its exit code.
            signal.signal(number, signal.SIG_IGN if self.requested else handler)
        signal.set_wakeup_fd(self._descriptor_before)
        self._closing = True
        self._sender.send(b"\0")
        self._thread.join()
        self._receiver.close()
        self._sender.close()

    def _listen(self) -> None:
        while not self._closing:
            timeout_s = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
            if not select.select([self._receiver], [], [], timeout_s)[0]:
                _exit_now(self.exit_code, self._exit_message())
            for number in self._receiver.recv(64):
                if number in STOP_SIGNALS:
                    self._handle_signal(number)

    def _handle_signal(self, number: int) -> None:
        announce = self._announce
        if self._first and number in _NOTICES:
            return
        if self._first or announce is None:
            _exit_now(128 + number, self._exit_message())
        self._first = number
        self._deadline = time.monotonic() + self._grace_s
        announce("stopping after this step ... (press Ctrl-C again to exit at once)")


def _ignore_signal(number: int, frame: FrameType | None) -> None:
    """Do nothing, unlike the default action: the thread gets the signal number from the wakeup socket."""


def _exit_now(exit_code: int, words: str) -> NoReturn:
    """Exit without waiting. Files are replaced atomically, so no file is incomplete."""
    try:
        # A live display may have replaced sys.stdout.
        if sys.__stdout__ is not None and sys.__stdout__.isatty():
            os.write(sys.__stdout__.fileno(), _SHOW_CURSOR)
        os.write(2, f"{words}\n".encode())
    finally:
        os._exit(exit_code)
