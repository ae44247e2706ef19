"""Exit of a process whose threads may still run inside a library that cannot be interrupted."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn


@contextmanager
def ends_whole() -> Iterator[None]:
    """Exit with the block's exit code even if daemon threads are still running.

    At interpreter exit, threads that return from torch or a driver are unwound, which their C++ code does not
    survive: the process would abort with "terminate called without an active exception" (exit code 134).
    """
    try:
        yield
    except SystemExit as ending:
        code = 0 if ending.code is None else ending.code
        if isinstance(code, int) and _has_live_threads():
            _end_now(code)
        raise


@contextmanager
def exits_told() -> Iterator[None]:
    """Within the block, report `os._exit` calls of other packages in one line and replace exit code 0 by 1.

    A plug-in that calls `os._exit` would end a run as if it had succeeded. Forked child processes are not
    affected. Exits inside C libraries are not detected.
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
    """Do what the interpreter does at exit, except for finalizing itself."""
    try:
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.main_thread():
                thread.join()
        # atexit functions remove temporary files, for example. There is no public function to run them.
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
    finally:
        os._exit(code)
