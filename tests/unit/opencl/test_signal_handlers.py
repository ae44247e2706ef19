"""What an OpenCL implementation does with the process's signals is undone."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hyrt_devices.opencl_host.driver_workarounds import _action, _function, preserve_signal_handlers

LIBRARY = ctypes.CDLL(None)
LIBRARY.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
LIBRARY.signal.restype = ctypes.c_void_p
IGNORE = 1


@pytest.fixture
def heard() -> Iterator[list[int]]:
    numbers: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


def taken_over() -> None:
    """As a library does it: Python is not told."""
    LIBRARY.signal(signal.SIGTERM, IGNORE)


def test_a_handler_that_a_library_takes_over_comes_back(heard: list[int]) -> None:
    before = _function(_action(signal.SIGTERM))
    with preserve_signal_handlers():
        taken_over()
        assert _function(_action(signal.SIGTERM)) != before
    assert _function(_action(signal.SIGTERM)) == before
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_also_after_an_error_and_from_another_thread(heard: list[int]) -> None:
    def fail() -> None:
        with suppress(OSError), preserve_signal_handlers():
            taken_over()
            raise OSError("no driver")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


def test_a_handler_that_python_was_given_meanwhile_stays(heard: list[int]) -> None:
    later: list[int] = []
    with preserve_signal_handlers():
        signal.signal(signal.SIGTERM, lambda number, frame: later.append(number))
    signal.raise_signal(signal.SIGTERM)
    assert (heard, later) == ([], [signal.SIGTERM])


def test_threads_that_the_block_starts_leave_the_signals_to_others() -> None:
    masks: list[set[signal.Signals]] = []

    def note() -> None:
        masks.append(set(signal.pthread_sigmask(signal.SIG_BLOCK, ())))

    with preserve_signal_handlers():
        thread = threading.Thread(target=note)
        thread.start()
        thread.join()
    note()
    inside, after = masks
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= inside
    assert not {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} & after
