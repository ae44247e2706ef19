"""Hang detection for a child process: idle time counts in full, computing and page reads have a longer
limit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# A child that computes may take this many limits: on a busy machine it gets only part of the CPU time.
BUSY_TIMES = 5
LOOK_S = 0.25
# A longer gap means that this process was paused or the machine slept: only this much of the gap counts.
_MAX_GAP_S = 1.0
# Fraction of a CPU; below it, the usage is only the timer ticks of idle threads.
_MIN_CPU_FRACTION = 0.1
_STOPPED_STATES = "Tt"


@dataclass(frozen=True, slots=True)
class Activity:
    """CPU and I/O activity of a process, as reported by the system."""

    cpu_s: float
    """CPU time of the process, or of its whole session if it waits for other processes of its session."""
    is_ready: bool = False
    """Whether the process is running or runnable."""
    is_stopped: bool = False
    """Whether a signal has stopped the process."""
    pages_read: int = 0
    """Memory pages read from disk, for example while importing libraries."""


class Watch:
    """Idle and busy time of one item in a child process, with a limit for each.

    Parameters
    ----------
    limit_s
        Idle time allowed, in seconds; total time may be `BUSY_TIMES` times as long.
    activity
        Returns the activity of the child, or None if the system does not report it: then all time counts as
        idle.
    clock
        Clock in seconds; replaceable in tests.
    """

    def __init__(
        self,
        limit_s: float,
        activity: Callable[[], Activity | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s = limit_s
        self._activity = activity
        self._clock = clock
        self._looked = clock()
        self._before: Activity | None = None
        self._waited_s = 0.0
        self._worked_s = 0.0

    def look(self) -> str:
        """Return why the item counts as hanging, or an empty string. Calls in quick succession count as
        one.
        """
        now = self._clock()
        elapsed = now - self._looked
        if elapsed < min(LOOK_S, self._limit_s) / 2:
            return ""
        self._looked = now
        activity = self._activity()
        before, self._before = self._before, activity
        counted = min(elapsed, _MAX_GAP_S)
        if activity is None:
            self._waited_s += counted
        elif not activity.is_stopped:
            before = before or activity
            spent, read = activity.cpu_s - before.cpu_s, activity.pages_read - before.pages_read
            if activity.is_ready or spent >= _MIN_CPU_FRACTION * elapsed or read > 0:
                self._worked_s += counted
            else:
                self._waited_s += counted
        if self._waited_s >= self._limit_s:
            return f"hangs: no answer within {self._limit_s:g} s"
        if self._waited_s + self._worked_s >= BUSY_TIMES * self._limit_s:
            return f"hangs: computes and gives no answer within {BUSY_TIMES * self._limit_s:g} s"
        return ""


def activity_of(pid: int, proc: Path = Path("/proc")) -> Activity | None:
    """Return the activity of a session leader from Linux's /proc; None if it is not available."""
    leader = _stat(proc / str(pid))
    if leader is None:
        return None
    states, cpu_s, pages = leader[0], leader[2], leader[3]
    if states not in _STOPPED_STATES and states != "R":
        # The process may be waiting for a compiler that it has started.
        try:
            names = [name for name in os.listdir(proc) if name.isdigit() and int(name) != pid]
        except OSError:
            names = []
        for name in names:
            other = _stat(proc / name)
            if other is not None and other[1] == pid:
                states += other[0]
                cpu_s += other[2]
    return Activity(cpu_s, is_ready="R" in states, is_stopped=states[0] in _STOPPED_STATES, pages_read=pages)


def _stat(process: Path) -> tuple[str, int, float, int] | None:
    """Return state, session, CPU seconds and pages read of a process; None if it has ended."""
    try:
        text = (process / "stat").read_text()
        # The preceding process name may contain anything, including parentheses.
        fields = text.rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return fields[0], int(fields[3]), ticks / os.sysconf("SC_CLK_TCK"), int(fields[9])
    except (OSError, ValueError, IndexError):
        return None
