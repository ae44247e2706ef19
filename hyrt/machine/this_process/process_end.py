"""The end of a process that may have left threads behind, inside a library that cannot be interrupted."""

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
    """End the process with the exit code that leaves the block, whatever its threads are at.

    An interpreter that ends unwinds each thread that comes back from torch or a driver, which their C++ does
    not survive: the process would abort with "terminate called without an active exception" (exit code 134).
    """
    try:
        yield
    except SystemExit as ending:
        code = 0 if ending.code is None else ending.code
        if isinstance(code, int) and _is_left_behind():
            _end_now(code)
        raise


@contextmanager
def exits_told() -> Iterator[None]:
    """Within the block, `os._exit` by others' code says so in a line, and never ends with exit code 0.

    A plug-in that calls it would end a run as if all were done. Processes that are forked here are left to
    those who fork them. What a C library does itself is not seen.
    """
    before, here = os._exit, os.getpid()

    def told(status: int) -> NoReturn:
        frame = sys._getframe(1)
        if os.getpid() == here and frame.f_globals.get("__name__", "").partition(".")[0] != "hyrt":
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            line = (
                f"error: os._exit({status}) was called at {place}, which ends the command before it is done: "
                "raise an exception there, or run without the package that it belongs to\n"
            )
            with suppress(OSError):
                os.write(2, line.encode(errors="backslashreplace"))
            status = status or 1
        before(status)

    os._exit = told
    try:
        yield
    finally:
        os._exit = before


def _is_left_behind() -> bool:
    here = threading.current_thread()
    return any(thread.daemon and thread is not here for thread in threading.enumerate())


def _end_now(code: int) -> NoReturn:
    """What the interpreter does at its end, but for taking itself apart."""
    try:
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.main_thread():
                thread.join()
        # Temporary files are removed by such functions. Nothing public runs them.
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
    finally:
        os._exit(code)
