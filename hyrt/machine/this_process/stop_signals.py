"""Signals that stop a run: before training they end the process, during it they end it after the step."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NoReturn, Self

# What batch systems send some time before they kill. SIGXCPU comes again for each second of CPU time.
_NOTICES = (signal.SIGXCPU, signal.SIGUSR1, signal.SIGUSR2)
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, *_NOTICES)
"""Those that ask a run to stop: by hand, and by batch systems."""
_NEVER_IGNORED = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = b"\r\x1b[?25h\x1b[K"
_FIRST_WORDS = "interrupted before the run began"


class StopSignals:
    """Listens for `STOP_SIGNALS` on a thread of its own; a context manager for the main thread.

    SIGHUP comes when a terminal closes; where it is ignored, as under nohup, it stays so, and so do those of
    batch systems. Python runs signal handlers between two bytecodes of the main thread, which may be in a
    compiled kernel for minutes. A thread that reads the signals' numbers from a socket acts at once.

    Parameters
    ----------
    grace_s
        Longest time from the first signal during training to the end of the process.
    """

    def __init__(self, grace_s: float = 8.5) -> None:
        self._grace_s = grace_s
        self._first = 0
        self._announce: Callable[[str], None] | None = None
        self._last_words: Callable[[], str] = lambda: _FIRST_WORDS
        self._deadline: float | None = None
        self._closing = False

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self._first != 0

    @property
    def first(self) -> int:
        """The number of the first signal that has come; 0 for none."""
        return self._first

    @property
    def exit_code(self) -> int:
        """128 + the first signal's number: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + self._first

    def wait_for_step(self, announce: Callable[[str], None], last_words: Callable[[], str]) -> None:
        """From now on the first signal only sets `requested`.

        Parameters
        ----------
        announce
            Told at once that the step will be finished first.
        last_words
            Gives what to say when the process leaves before the step has ended: after the grace time, or at a
            second signal that is none of those of batch systems.
        """
        self._last_words = last_words
        self._announce = announce

    def __enter__(self) -> Self:
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._descriptor_before = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        self._handlers_before = {
            number: signal.signal(number, _leave_to_thread)
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
            # A stopped process is about to end: one more signal must not change how.
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
                _leave(self.exit_code, self._last_words())
            for number in self._receiver.recv(64):
                if number in STOP_SIGNALS:
                    self._heard(number)

    def _heard(self, number: int) -> None:
        announce = self._announce
        if self._first and number in _NOTICES:
            return
        if self._first or announce is None:
            _leave(128 + number, self._last_words())
        self._first = number
        self._deadline = time.monotonic() + self._grace_s
        announce("stopping after this step ... (press Ctrl-C again to exit at once)")


def _leave_to_thread(number: int, frame: FrameType | None) -> None:
    """Replace the default action; the number has already gone to the listening thread."""


def _leave(exit_code: int, words: str) -> NoReturn:
    """End the process without waiting: files are replaced whole, so none is left half written."""
    try:
        # Not sys.stdout, which a redrawn display replaces.
        if sys.__stdout__ is not None and sys.__stdout__.isatty():
            os.write(sys.__stdout__.fileno(), _SHOW_CURSOR)
        os.write(2, f"{words}\n".encode())
    finally:
        os._exit(exit_code)
