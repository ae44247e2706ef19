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
