"""Fork safety: a forked child has only the forking thread, but inherits locks that other threads held."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from functools import cache
from types import FrameType

# The value is the process id, so a new interpreter started by a forked child is not marked.
_MARK = "HYRT_FORKED"
# Upper bound of importing torch from a slow disk. After that the fork proceeds, even if the child may hang.
_MAX_WAIT_S = 60.0
# Neither module locks nor the lock of numba's compiler notify waiters, so both are polled.
_POLL_S = 0.01


@cache
def wait_at_forks() -> None:
    """Make every later fork of this process first wait for imports and compilations in other threads.

    Otherwise the child would inherit locks of modules under import and of numba's compiler, held by threads
    that do not exist in the child: its first use of either would wait forever.
    """
    # Handlers run in reverse order of registration. `logging`, whose lock an import may take, must register
    # first.
    assert logging
    os.register_at_fork(before=_wait_for_locks)


def _wait_for_locks() -> None:
    end = time.monotonic() + _MAX_WAIT_S
    while _others_hold_locks() and time.monotonic() < end:
        time.sleep(_POLL_S)


def _others_hold_locks() -> bool:
    this_thread = threading.get_ident()
    return any(
        _holds_locks(frame) for thread, frame in sys._current_frames().items() if thread != this_thread
    )


def _holds_locks(frame: FrameType | None) -> bool:
    """Return whether a thread is in numba's compiler or in an import of hyrt; other imports do not count."""
    is_import = False
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package == "numba":
            return True
        # From the innermost call outwards: hyrt may itself run inside another library's import.
        if package == "hyrt" and (is_import or frame.f_code.co_name == "<module>"):
            return True
        is_import = is_import or package == "importlib"
        frame = frame.f_back
    return False


@cache
def mark_forks() -> None:
    """Mark processes that are forked from this one from now on; see `was_forked_late`."""
    os.register_at_fork(after_in_child=lambda: os.environ.update({_MARK: str(os.getpid())}))


def was_forked_late() -> bool:
    """Return whether this process was forked after `mark_forks`.

    OpenMP's threads exist only in the parent: torch's first parallel loop would wait forever.
    """
    return os.environ.get(_MARK) == str(os.getpid())
