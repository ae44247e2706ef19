"""Workarounds for OpenCL drivers that print compiler reports or replace signal handlers."""

from __future__ import annotations

import ctypes
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from hyrt.runtime.shutdown import STOP_SIGNALS

# Warning filters are per process: without a lock, a thread could restore another thread's filters.
_LOCK = threading.Lock()


@contextmanager
def reports_ignored() -> Iterator[None]:
    """Suppress pyopencl's warnings about compiler reports of successful builds, in one thread at a time.

    pyopencl warns about any report, for example about vectors that are wider than the processor's.
    """
    import pyopencl as cl

    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        yield


# Upper bound of the size of `struct sigaction` on any system.
_ACTION_BYTES = 512


@contextmanager
def preserve_signal_handlers() -> Iterator[None]:
    """Restore the signal handlers after the block, and block the signals in threads that the block starts.

    PoCL compiles with LLVM, which replaces the handlers: on a signal, LLVM first removes the files that it is
    writing, so that the current build fails. PoCL's threads also start a linker, which Ctrl-C in a terminal
    terminates; PoCL then aborts the process. Threads and processes inherit the blocked signals of the thread
    that starts them. Handlers that are set in Python during the block are kept.
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
    """Return the `struct sigaction` of a signal."""
    action = ctypes.create_string_buffer(_ACTION_BYTES)
    ctypes.CDLL(None).sigaction(number, None, action)
    return action.raw


def _function(action: bytes) -> bytes:
    """Return the handler's address, the first field of `struct sigaction`; the last field may be unset."""
    return action[: ctypes.sizeof(ctypes.c_void_p)]
