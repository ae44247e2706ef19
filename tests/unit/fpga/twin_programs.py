"""The trainer's twin in OpenCL C as compute units of an OpenCL device, so that the host path computes."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
from hyrt_devices.fpga.device import FpgaDevice
from hyrt_devices.fpga.xclbin import KERNEL
from hyrt_devices.opencl.probe import survey
from hyrt_devices.opencl_host.driver_workarounds import reports_ignored
from hyrt_hls.resources import KernelDesign
from hyrt_perfmodel.fpga_design import LANES

from hyrt.device import DeviceInfo, DeviceOptions

ONCHIP = 10
DESIGN = KernelDesign(pes=4, mac_rows=4, mac_cols=16, arena_words=4096)


class TwinPrograms:
    """Kernels of `task.cl`, each compute unit with an arena of its own in global memory."""

    def __init__(self, context: Any, program: Any, design: KernelDesign, num_units: int) -> None:
        import pyopencl as cl

        self.design = design
        self._program = program
        size = 4 * LANES * design.pes * design.arena_words
        # What a unit finds on its chip is what was there: nothing may depend on it.
        junk = np.full(size // 4, np.nan, np.float32)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        self._arenas = [cl.Buffer(context, flags, hostbuf=junk) for _ in range(num_units)]

    @property
    def num_units(self) -> int:
        return len(self._arenas)

    def kernel(self, unit: int) -> Any:
        import pyopencl as cl

        kernel = cl.Kernel(self._program, KERNEL)
        kernel.set_arg(ONCHIP, self._arenas[unit])
        return kernel


class Machine:
    """An OpenCL device that stands in for a card; the twin is compiled once a design."""

    def __init__(self) -> None:
        import pyopencl as cl

        self.device = survey().found[0].device
        self.context = cl.Context([self.device])
        self._built: dict[KernelDesign, Any] = {}

    def programs(self, design: KernelDesign = DESIGN, num_units: int = 2) -> TwinPrograms:
        import pyopencl as cl

        if design not in self._built:
            source = (files("hyrt_devices.fpga") / "task.cl").read_text(encoding="utf-8")
            words = [f"-DPES={design.pes}", f"-DARENA_WORDS={design.arena_words}"]
            with reports_ignored():
                program = cl.Program(self.context, source)
                self._built[design] = program.build(words, devices=[self.device])
        return TwinPrograms(self.context, self._built[design], design, num_units)

    def open(
        self, options: DeviceOptions | None = None, *, design: KernelDesign = DESIGN, num_units: int = 2
    ) -> FpgaDevice:
        info = DeviceInfo(
            kind="fpga",
            index=0,
            description=f"a twin of {num_units} units",
            memory_bytes=int(self.device.global_mem_size),
            forms=("rows", "quantized"),
        )
        return FpgaDevice(
            info, self.context, self.device, options or DeviceOptions(), self.programs(design, num_units)
        )
