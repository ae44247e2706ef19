"""A device that cannot be opened, and one that hangs."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hyrt_devices.cpu import CpuDevice

from hyrt.errors import DeviceUnavailableError
from hyrt.testing import ConformanceError, check_device


def test_an_open_that_raises() -> None:
    def open_fn(options: Any) -> Any:
        raise RuntimeError("no power")

    with pytest.raises(DeviceUnavailableError, match=r"the device: open failed \(.*no power"):
        check_device(open_fn)


def test_an_open_that_returns_nothing() -> None:
    with pytest.raises(DeviceUnavailableError, match="open_fn returned NoneType, expected a device"):
        check_device(lambda options: None)  # type: ignore[arg-type,return-value]


def test_nothing_is_asked_of_a_device_after_it_hung() -> None:
    end = threading.Event()

    class Hanging(CpuDevice):
        def transfer(self, batch: Any) -> Any:
            return self.stuck()

        def stuck(self) -> None:
            end.wait()

    info = CpuDevice.probe()[0]
    try:
        with pytest.raises(
            ConformanceError, match=r"the check to finish within 3 s; it hangs at .* in stuck"
        ) as error:
            check_device(lambda options: Hanging(info, options), limit_s=3)
    finally:
        end.set()
    (failed,) = error.value.report.failed
    assert error.value.report.verdicts[-1] == failed
