"""Opening, loading and closing devices that fail or hang."""

from __future__ import annotations

import threading

import pytest

from hyrt.device.calls import call_device
from hyrt.errors import DeviceFault, DeviceUnavailable, Stalled


def test_the_answer_comes_through() -> None:
    assert call_device("npu:0", "open", lambda: 7, timeout_s=5, fault=DeviceUnavailable) == 7
    assert call_device("npu:0", "close", lambda: None, timeout_s=5, fault=DeviceFault) is None


def test_what_is_not_hyrts_gets_the_devices_name() -> None:
    def fail() -> None:
        raise RuntimeError("no\npower")

    with pytest.raises(DeviceUnavailable, match="npu:0: open failed: RuntimeError: no power") as caught:
        call_device("npu:0", "open", fail, timeout_s=5, fault=DeviceUnavailable)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_hyrts_own_errors_stay() -> None:
    def fail() -> None:
        raise DeviceUnavailable("npu:0 is in use")

    with pytest.raises(DeviceUnavailable, match=r"^npu:0 is in use$"):
        call_device("npu:0", "load", fail, timeout_s=5, fault=DeviceFault)


def test_hyrts_own_errors_get_the_devices_name_where_they_lack_it() -> None:
    def fail() -> None:
        raise DeviceUnavailable("busy")

    with pytest.raises(DeviceUnavailable, match=r"^npu:0: busy$"):
        call_device("npu:0", "open", fail, timeout_s=5, fault=DeviceFault)


def test_a_call_that_hangs_ends_the_wait() -> None:
    free = threading.Event()
    try:
        with pytest.raises(Stalled, match=r"npu:0: open did not end within 0.05 s"):
            call_device("npu:0", "open", free.wait, timeout_s=0.05, fault=DeviceUnavailable)
    finally:
        free.set()


def test_time_in_which_the_process_was_stopped_does_not_end_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock that `join` waits by goes on meanwhile; what is left of the call goes on only afterwards."""
    free = threading.Event()
    join = threading.Thread.join
    waits: list[float | None] = []

    def stopped_at_first(self: threading.Thread, timeout: float | None = None) -> None:
        waits.append(timeout)
        if len(waits) > 1:
            free.set()
            join(self, timeout)

    monkeypatch.setattr(threading.Thread, "join", stopped_at_first)
    assert call_device("npu:0", "open", free.wait, timeout_s=9, fault=DeviceUnavailable) is True
    assert len(waits) > 1
    assert sum(wait or 0 for wait in waits) <= 9
