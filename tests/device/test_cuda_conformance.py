"""The conformance suite on the torch device over a double of its driver, also with emulated kernels."""

from __future__ import annotations

import pytest
from hyrt_devices.cuda.device import CudaDevice
from unit.cuda.emulated_kernels import EmulatedLauncher, needs_compiler
from unit.cuda.fake_driver import FakeDriver

from hyrt.device import DeviceInfo, DeviceOptions

testing = pytest.importorskip("hyrt.testing", reason="the conformance suite is not in this tree")

INFO = DeviceInfo(
    whole_graphs=True,
    kind="cuda",
    index=0,
    description="a double of the driver",
    memory_bytes=1 << 30,
    forms=("rows", "quantized", "cached", "ids", "hetero"),
)


@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=needs_compiler)])
def test_the_double_conforms(kernels: bool) -> None:
    def opened(options: DeviceOptions) -> CudaDevice:
        driver = FakeDriver()
        return CudaDevice(INFO, options, driver, EmulatedLauncher(driver) if kernels else None)

    testing.check_device(opened)
