"""When a child process hangs: waiting counts at once, computing and reading libraries later."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# A child that computes all along may take that many limits: on a busy machine it gets a part of the time.
BUSY_TIMES = 5
LOOK_S = 0.25
# A later look means that the doctor itself was paused, or the machine slept: that much of it counts.
_MOST_S = 1.0
# Less of a processor is the ticking of threads that wait.
_WORKING = 0.1
_STOPPED = "Tt"


@dataclass(frozen=True, slots=True)
class Activity:
    """What the system says of a process."""

    cpu_s: float
    """Processor time of the process, or of its whole session where it waits for others of it."""
    is_ready: bool = False
    """Whether it runs, or would if there were a processor."""
    is_stopped: bool = False
    """Whether it was stopped by a signal."""
    pages_read: int = 0
    """Pages of memory that it has read from a disk, as when it imports libraries."""


class Watch:
    """Adds up how long one item of a child process takes.

    Parameters
    ----------
    limit_s
        The seconds of waiting that are allowed; `BUSY_TIMES` as many of waiting and computing.
    activity
        The activity of the child; None where the system does not say: all time counts as waiting.
    clock
        Seconds; replaceable in tests.
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
        """Why it hangs; empty as long as it does not. Looks that follow each other fast are one."""
        now = self._clock()
        passed = now - self._looked
        if passed < min(LOOK_S, self._limit_s) / 2:
            return ""
        self._looked = now
        activity = self._activity()
        before, self._before = self._before, activity
        counted = min(passed, _MOST_S)
        if activity is None:
            self._waited_s += counted
        elif not activity.is_stopped:
            before = before or activity
            spent, read = activity.cpu_s - before.cpu_s, activity.pages_read - before.pages_read
            if activity.is_ready or spent >= _WORKING * passed or read > 0:
                self._worked_s += counted
            else:
                self._waited_s += counted
        if self._waited_s >= self._limit_s:
            return f"hangs: no answer within {self._limit_s:g} s"
        if self._waited_s + self._worked_s >= BUSY_TIMES * self._limit_s:
            return f"hangs: computes and gives no answer within {BUSY_TIMES * self._limit_s:g} s"
        return ""


def activity_of(pid: int, proc: Path = Path("/proc")) -> Activity | None:
    """What Linux says of the leader of a session; None where it says nothing."""
    mine = _stat(proc / str(pid))
    if mine is None:
        return None
    states, cpu_s, pages = mine[0], mine[2], mine[3]
    if states not in _STOPPED and states != "R":
        # It may wait for a compiler that it has started.
        try:
            names = [name for name in os.listdir(proc) if name.isdigit() and int(name) != pid]
        except OSError:
            names = []
        for name in names:
            other = _stat(proc / name)
            if other is not None and other[1] == pid:
                states += other[0]
                cpu_s += other[2]
    return Activity(cpu_s, is_ready="R" in states, is_stopped=states[0] in _STOPPED, pages_read=pages)


def _stat(process: Path) -> tuple[str, int, float, int] | None:
    """State, session, processor seconds and pages read of a process; None where it has gone."""
    try:
        text = (process / "stat").read_text()
        # The name before may hold anything, parentheses too.
        fields = text.rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return fields[0], int(fields[3]), ticks / os.sysconf("SC_CLK_TCK"), int(fields[9])
    except (OSError, ValueError, IndexError):
        return None
