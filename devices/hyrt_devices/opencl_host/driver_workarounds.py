"""Workarounds for OpenCL drivers that print compiler reports or replace signal handlers."""

from __future__ import annotations

import ctypes
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from hyrt.runtime.shutdown import STOP_SIGNALS

# Filters of warnings belong to the process: a thread that restores them would restore another's.
_LOCK = threading.Lock()


@contextmanager
def reports_ignored() -> Iterator[None]:
    """Build programs without a warning where the compiler reports that all went well.

    pyopencl warns of any report, such as one of vectors that are wider than the processor's. One thread at a
    time is in such a block.
    """
    import pyopencl as cl

    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        yield


# More than a `struct sigaction` has on any system.
_ACTION_BYTES = 512


@contextmanager
def preserve_signal_handlers() -> Iterator[None]:
    """Keep the signals' handlers, and keep the signals from the threads that the block starts.

    PoCL compiles with LLVM, which takes the handlers over: at a signal it first removes the files that it is
    writing, so that the build that is under way fails. And PoCL's threads start a linker, which Ctrl-C in a
    terminal ends as well; PoCL then aborts the process. What a thread starts blocks the signals that it
    blocks itself. Handlers that Python was given in the meantime stay.
    """
    before = {number: (signal.getsignal(number), _action(number)) for number in STOP_SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        for number, (handler, action) in before.items():
            if _function(_action(number)) != _function(action) and signal.getsignal(number) == handler:
                ctypes.CDLL(None).sigaction(number, action, None)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _action(number: int) -> bytes:
    """What the system does at a signal: its `struct sigaction`."""
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    ctypes.CDLL(None).sigaction(number, None, action)
    return action.raw


def _function(action: bytes) -> bytes:
    """The handler's address, which is the first of a `struct sigaction`; the last of it is not always set."""
    return action[: ctypes.sizeof(ctypes.c_void_p)]
