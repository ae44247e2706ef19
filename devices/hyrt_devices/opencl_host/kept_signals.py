"""Signals that stop a run belong to this process, not to an OpenCL implementation and its compiler."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from hyrt.machine.this_process.stop_signals import STOP_SIGNALS

# More than a `struct sigaction` has on any system.
_ACTION_BYTES = 512


@contextmanager
def kept_signals() -> Iterator[None]:
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
