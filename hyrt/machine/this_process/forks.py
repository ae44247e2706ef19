"""Processes that are forked from one in which other threads work, which do not come along."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from functools import cache
from types import FrameType

# What a process says of itself: a child that starts another interpreter has another number.
_MARK = "HYRT_FORKED"
# What importing torch from a slow disk may take. Whoever forks goes on then, whatever becomes of the child.
_LONGEST_S = 60.0
# Neither module locks nor the lock of numba's compiler tell other threads when they are free, so both are
# looked at every so often.
_LOOK_S = 0.01


@cache
def wait_at_forks() -> None:
    """From now on, whoever forks this process first waits for what is imported and compiled in other threads.

    The child would find the modules that hyrt was importing there, and numba's compiler, locked by threads
    that it does not have: its first use of them would wait for ever.
    """
    # What is registered last comes first: `logging`, whose lock an import may take, has to come after this.
    assert logging
    os.register_at_fork(before=_wait)


def _wait() -> None:
    end = time.monotonic() + _LONGEST_S
    while _others_hold_locks() and time.monotonic() < end:
        time.sleep(_LOOK_S)


def _others_hold_locks() -> bool:
    here = threading.get_ident()
    return any(_holds_locks(frame) for thread, frame in sys._current_frames().items() if thread != here)


def _holds_locks(frame: FrameType | None) -> bool:
    """Whether a thread is in numba's compiler, or imports for hyrt; what others import is theirs."""
    is_import = False
    while frame is not None:
        room = frame.f_globals.get("__name__", "").partition(".")[0]
        if room == "numba":
            return True
        # From the innermost call outwards: hyrt may itself run in what somebody else imports.
        if room == "hyrt" and (is_import or frame.f_code.co_name == "<module>"):
            return True
        is_import = is_import or room == "importlib"
        frame = frame.f_back
    return False


@cache
def mark_forks() -> None:
    """From now on, processes that are forked from this one know it; see `was_forked_late`."""
    os.register_at_fork(after_in_child=lambda: os.environ.update({_MARK: str(os.getpid())}))


def was_forked_late() -> bool:
    """Whether this process was forked after `mark_forks`.

    OpenMP's threads are those of the parent: the first loop that torch shares among them would wait for ever.
    """
    return os.environ.get(_MARK) == str(os.getpid())
