"""Watchdog that ends a run without progress and reports the stack of every thread."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable


class NoProgressGuard:
    """Detect that an activity counter stays unchanged while the consumer waits.

    Parameters
    ----------
    timeout_s
        Longest time without a change.
    activity
        Returns a number that changes with any progress.
    waiting
        Returns whether the consumer is waiting; its own work does not count as a stall.
    on_stall
        Called once with the stacks of all threads.
    clock
        Clock in seconds; replaceable in tests.
    """

    def __init__(
        self,
        timeout_s: float,
        activity: Callable[[], int],
        waiting: Callable[[], bool],
        on_stall: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s = timeout_s
        self._activity = activity
        self._waiting = waiting
        self._on_stall = on_stall
        self._clock = clock
        self._seen = -1
        self._since = clock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hyrt.guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def check(self, late_s: float = 0.0) -> bool:
        """Check for progress once; return True if the run has stalled.

        Parameters
        ----------
        late_s
            Delay of this check beyond its schedule: the process was stopped or the machine slept, so no
            progress was possible.
        """
        now = self._clock()
        self._since += late_s
        activity = self._activity()
        if activity != self._seen or not self._waiting():
            self._seen = activity
            self._since = now
            return False
        return now - self._since >= self._timeout_s

    def _watch(self) -> None:
        pause_s = min(1.0, self._timeout_s / 4)
        last_check = self._clock()
        while not self._stop.wait(pause_s):
            now = self._clock()
            # A busy machine delays a check a little; during such a delay progress was possible.
            late_s = now - last_check - 2 * pause_s
            last_check = now
            if self.check(max(0.0, late_s)):
                self._on_stall(thread_stacks())
                return


def thread_stacks() -> str:
    """Return the formatted stack of every thread, with thread names."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame))
        parts.append(f"thread {names.get(ident, ident)}\n{stack}")
    return "\n".join(parts)
