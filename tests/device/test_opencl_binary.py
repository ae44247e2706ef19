"""Kernels from a binary go through the same provider as kernels from source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hyrt_devices.opencl import OpenclDevice
from hyrt_devices.opencl.launch import Launcher
from hyrt_devices.opencl.probe import survey
from hyrt_devices.opencl.programs import BinaryProgram, SourcePrograms

from hyrt.errors import DeviceUnavailable

pytestmark = pytest.mark.skipif(not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device")


def test_a_binary_computes_what_its_source_does(tmp_path: Path) -> None:
    import pyopencl as cl

    device = survey().found[0].device
    context = cl.Context([device])
    words = {"BLOCK": 16, "ITEMS": 1, "GRAIN": 64, "PANEL": 32}
    path = tmp_path / "sizeless.bin"
    path.write_bytes(SourcePrograms(context, device).built("sizeless", words).binaries[0])
    kernel = BinaryProgram(context, device, path).kernel("sizeless", "pack", {})
    weights = np.arange(5 * 40, dtype=np.float32).reshape(40, 5)
    flags = cl.mem_flags
    given = cl.Buffer(context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=weights)
    panels = np.empty((2, 5, 32), np.float32)
    made = cl.Buffer(context, flags.READ_WRITE, panels.nbytes)
    queue = Launcher(context, device)
    queue.launch(kernel, (2, 1), (1, 1), given, 0, 5, 40, 1, 5, made)
    queue.read(panels, made)
    queue.close()
    wanted = np.zeros((5, 64), np.float32)
    wanted[:, :40] = weights.T
    np.testing.assert_array_equal(panels, wanted.reshape(5, 2, 32).transpose(1, 0, 2))


def test_a_binary_that_is_not_there_is_named(tmp_path: Path) -> None:
    import pyopencl as cl

    device = survey().found[0].device
    with pytest.raises(DeviceUnavailable, match=r"gone\.xclbin: the device's binary cannot be read"):
        BinaryProgram(cl.Context([device]), device, tmp_path / "gone.xclbin")
