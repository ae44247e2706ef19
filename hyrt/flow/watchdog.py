"""The no-progress guard: a run in which nothing moves ends with every thread's stack, not with silence."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable


class NoProgressGuard:
    """Watches a counter while somebody waits for it to move.

    Parameters
    ----------
    timeout_s
        Longest time without a move.
    activity
        A number that changes whenever anything moves.
    waiting
        Whether the consumer is waiting; time it spends on its own work does not count.
    on_stall
        Called once with the stacks of all threads.
    clock
        Seconds; replaceable in tests.
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
        """Look once; True when the run has stalled.

        Parameters
        ----------
        late_s
            By how much this look is late: the process was stopped, or the machine slept, and nobody could
            move.
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
        looked = self._clock()
        while not self._stop.wait(pause_s):
            now = self._clock()
            # A busy machine makes a look a little late; that is time in which something could have moved.
            late_s = now - looked - 2 * pause_s
            looked = now
            if self.check(max(0.0, late_s)):
                self._on_stall(thread_stacks())
                return


def thread_stacks() -> str:
    """The stack of every thread, by name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame))
        parts.append(f"thread {names.get(ident, ident)}\n{stack}")
    return "\n".join(parts)
