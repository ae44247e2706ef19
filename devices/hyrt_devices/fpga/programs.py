"""Where the trainer kernel comes from, and on which compute units it runs."""

from __future__ import annotations

from typing import Any, Protocol

from hyrt_hls.parts.resources import KernelDesign

from hyrt.errors import DeviceUnavailable
from hyrt_devices.fpga.xclbin import Xclbin, read_design

KERNEL = "hyrt_train"


class TrainerPrograms(Protocol):
    """Gives the trainer's kernel objects.

    An implementation may bind arguments behind those of the contract itself.
    """

    @property
    def design(self) -> KernelDesign:
        """What the kernel was built with."""
        ...

    @property
    def num_units(self) -> int:
        """How many compute units there are."""
        ...

    def kernel(self, unit: int) -> Any:
        """A new `pyopencl.Kernel` for one compute unit: no two threads may share an object."""
        ...


class XclbinPrograms:
    """The trainer of an xclbin.

    Parameters
    ----------
    context, device
        The OpenCL context and device; the card is programmed here.
    xclbin
        Read before.

    Raises
    ------
    DeviceUnavailable
        If the file has no trainer with a compute unit, does not tell its design, or is refused by the card.
    """

    def __init__(self, context: Any, device: Any, xclbin: Xclbin) -> None:
        import pyopencl as cl

        self._path = xclbin.path
        self._units = xclbin.units_of(KERNEL)
        self.design = read_design(xclbin)
        try:
            content = xclbin.path.read_bytes()
            self._program = cl.Program(context, [device], [content])
        except (OSError, cl.Error) as error:
            raise DeviceUnavailable(
                f"{xclbin.path} (for {xclbin.platform}) cannot be loaded on "
                f"{device.name.strip() or 'the card'}: {error}: build it for the card's "
                "shell; XRT's own words are on stderr"
            ) from error
        # Nothing is built: an xclbin is complete. pyopencl asks every program for its source, and would take
        # XRT's complaint that there is no kernel of that name for an answer.
        self._program._source = ""

    @property
    def num_units(self) -> int:
        return len(self._units)

    def kernel(self, unit: int) -> Any:
        import pyopencl as cl

        name = self._units[unit]
        try:
            # By the bare name XRT may leave units out.
            return cl.Kernel(self._program, f"{KERNEL}:{{{name}}}")
        except cl.Error as error:
            raise DeviceUnavailable(
                f"{self._path}: XRT does not give the compute unit {KERNEL}:{name}, which the xclbin "
                f"lists: {error}"
            ) from error
